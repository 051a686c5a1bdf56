"""The step of the LightningModule against a loop written out."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from imagenet_opt.errors import ConfigError
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.optimizer import build_optimizer
from imagenet_opt.model.schedule import cosine


@dataclass
class Images:
    images: Tensor
    labels: Tensor
    valid: Tensor


def batches(num: int, *, seed: int = 0) -> list[Images]:
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(num, 6, 3, 4, 4, generator=random)
    labels = torch.randint(0, 3, (num, 6), generator=random)
    return [Images(i, label, torch.ones(6, dtype=torch.bool)) for i, label in zip(images, labels, strict=True)]


class Loader:
    """Any iterable with a length is a loader; a plain list would be taken for several."""

    def __init__(self, given: list[Images]) -> None:
        self.given = given

    def __len__(self) -> int:
        return len(self.given)

    def __iter__(self) -> Iterator[Images]:
        return iter(self.given)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))


OPTIMIZER = partial(build_optimizer, name="sgd", lr=0.5, momentum=0.9, weight_decay=1e-3, fused=None, global_batch=64)


def fit(net: nn.Module, train: list[Images], val: list[Images] | None = None, *callbacks: Callback, **options: Any):
    module = Classifier(net, optimizer=OPTIMIZER, schedule=partial(cosine, warmup_epochs=0.5), **options)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        callbacks=list(callbacks),
    )
    trainer.fit(module, Loader(train), Loader(val or batches(1)))
    return trainer, module


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_weights_are_those_of_a_plain_loop(smoothing: float) -> None:
    _, module = fit(network(), batches(4), label_smoothing=smoothing)
    net = network()
    optimizer = OPTIMIZER(net, device=torch.device("cpu"))
    for step in range(8):
        factor = cosine(step, num_steps=8, steps_per_epoch=4, warmup_epochs=0.5)
        for group in optimizer.param_groups:
            group["lr"] = 0.125 * factor
        batch = batches(4)[step % 4]
        optimizer.zero_grad()
        cross_entropy(net(batch.images), batch.labels, label_smoothing=smoothing).backward()
        optimizer.step()
    for trained, expected in zip(module.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_micro_batches_change_nothing_but_memory(size: int) -> None:
    _, whole = fit(network(), batches(4))
    _, parts = fit(network(), batches(4), micro_batch_size=size)
    for a, b in zip(whole.net.parameters(), parts.net.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_are_clipped_to_the_norm() -> None:
    norms = []

    class Norm(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
            def keep(*_: Any) -> None:
                norms.append(nn.utils.get_total_norm([p.grad for p in pl_module.parameters()]).item())

            trainer.optimizers[0].register_step_post_hook(keep)

    fit(network(), batches(4), None, Norm(), max_grad_norm=0.05)
    assert norms == pytest.approx([0.05] * 8, rel=1e-3)


def test_validation_leaves_padding_out() -> None:
    val = batches(2, seed=5)
    val[1].valid[4:] = False
    val[1].images[4:] = 1e6  # would ruin the loss if it counted
    trainer, module = fit(network(), batches(4), val)
    images = torch.cat([val[0].images, val[1].images[:4]])
    labels = torch.cat([val[0].labels, val[1].labels[:4]])
    logits = module.net(images)
    assert trainer.callback_metrics["val/loss"].item() == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-5)
    assert trainer.callback_metrics["val/acc1"].item() == pytest.approx((logits.argmax(1) == labels).double().mean())


def test_the_checkpoint_holds_the_averaged_network_when_there_is_one(tmp_path: Path) -> None:
    average = EMAWeightAveraging(decay=0.5)
    states = []

    class Save(Callback):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "x.ckpt")
            states.append({name: p.clone() for name, p in average._average_model.module.net.state_dict().items()})

    fit(network(), batches(4), None, average, Save())
    saved = torch.load(tmp_path / "x.ckpt", weights_only=True)
    for name, tensor in states[-1].items():
        assert torch.equal(saved["network"][name], tensor)
        assert not torch.equal(saved["network"][name], saved["current_model_state"][f"net.{name}"])


def test_a_bad_micro_batch_is_told() -> None:
    with pytest.raises(ConfigError, match=r"model\.micro_batch_size=0"):
        Classifier(network(), optimizer=OPTIMIZER, schedule=cosine, micro_batch_size=0)
