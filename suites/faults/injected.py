"""Callbacks that break a fit from inside: `+callbacks.trouble._target_=suites.faults.injected.BadBatch`."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer


class BadBatch(Callback):
    """The images of one step are NaN."""

    def __init__(self, *, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step:
            batch.images.fill_(torch.nan)


class SmallMemory(Callback):
    """More than `max_images` at a time do not fit, as on a GPU that is too small."""

    def __init__(self, *, max_images: int) -> None:
        self.max_images = max_images

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.net.register_forward_pre_hook(self._refuse)

    def _refuse(self, net: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if net.training and len(inputs[0]) > self.max_images:
            raise torch.OutOfMemoryError(f"out of memory, as it would be with {len(inputs[0])} images")
