"""One training step of a configuration, on a batch of noise that stays on the device: no data set, no loader."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Trainer
from omegaconf import DictConfig, open_dict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from imagenet_opt.cli.build import build_model, build_trainer, make
from imagenet_opt.cli.doctor_run import only, run_folder
from imagenet_opt.data.loader import image_dtype

NUM_CLASSES = 1000
"""Of ImageNet, where model.num_classes follows the data."""


class ResidentStep:
    """Forward, backward and update as the trainer does them, uncompiled and outside of it.

    The learning rate is 0, so that noise teaches nothing; the work is the same. dtype: of convolutions and products.
    """

    def __init__(
        self, net: nn.Module, optimizer: Optimizer, trainer: Trainer, images: Tensor, smoothing: float
    ) -> None:
        self.net, self.optimizer, self.images = net, optimizer, images
        self.device = images.device
        self.dtype = images.dtype
        self._smoothing = smoothing
        self._precision: Any = trainer.precision_plugin
        self._labels = torch.arange(len(images), device=self.device)
        with self._precision.forward_context():
            if torch.is_autocast_enabled(self.device.type):
                self.dtype = torch.get_autocast_dtype(self.device.type)

    def forward_backward(self) -> None:
        with self._precision.forward_context():
            logits = self.net(self.images).float()
            labels = self._labels % logits.shape[1]
            cross_entropy(logits, labels, label_smoothing=self._smoothing).backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def __call__(self) -> None:
        self.forward_backward()
        self.update()


@contextmanager
def resident_step(config: DictConfig) -> Iterator[ResidentStep]:
    """With the switches of callbacks.acceleration on, but for compile and CUDA graph. Raises ImagenetOptError."""
    with run_folder(only(config, callbacks=("acceleration",))) as config:
        callbacks = make(config.callbacks, "callbacks")
        with open_dict(config):
            config.callbacks = {}
            config.model.num_classes = config.model.num_classes or NUM_CLASSES
        trainer = build_trainer(config)
        model = build_model(config, global_batch=config.data.batch_size)
        for callback in callbacks.values():
            callback.setup(trainer, model, "fit")
        try:
            yield _on_device(config, trainer, model, channels_last=_is_channels_last(model.net))
        finally:
            for callback in callbacks.values():
                callback.teardown(trainer, model, "fit")


def _on_device(config: DictConfig, trainer: Trainer, model: Any, *, channels_last: bool) -> ResidentStep:
    device, side = trainer.strategy.root_device, config.data.image_size
    net = trainer.precision_plugin.convert_module(model.net).to(device).train()
    optimizer = model.optimizer(net, device=device)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    images = torch.randn(config.data.batch_size, 3, side, side, device=device)
    images = trainer.precision_plugin.convert_input(images.to(image_dtype(str(trainer.precision), device)))
    images = images.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    return ResidentStep(net, optimizer, trainer, images, smoothing=config.model.label_smoothing)


def _is_channels_last(net: nn.Module) -> bool:
    """By its first weight that shows it."""
    weights = [weight for weight in net.parameters() if weight.dim() == 4 and weight.shape[1] > 1]
    return bool(weights) and weights[0].is_contiguous(memory_format=torch.channels_last)
