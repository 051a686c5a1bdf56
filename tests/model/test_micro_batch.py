"""Out of memory: the step is done again in smaller parts, or the run ends and says what fits."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from imagenet_opt.errors import OutOfMemory
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.micro_batch import MicroBatches
from tests.model.conftest import Synced, batches, fit

OF_THREE: dict[str, Any] = {"batch_size": 6, "micro_batch_size": 2, "max_epochs": 1}
"""One step of three parts."""


class Small(nn.Module):
    """A device that holds so many images: more raise torch's error, after batch norm and dropout."""

    def __init__(self, holds: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.front = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout())
        self.head = nn.Linear(16, 3)
        self.holds = holds
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.front(images)
        if self.training:
            self.sizes.append(len(images))
            if len(images) > self.holds or len(self.sizes) == self.fails_at:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")
        elif len(images) > self.val_holds:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.head(hidden)

    fails_at: int | None = None
    val_holds = 6


def trained_alike(first: nn.Module, options: dict[str, Any], second: nn.Module, more: dict[str, Any]) -> Classifier:
    """Train both on the same random numbers and compare them bit by bit; returns the first module."""
    torch.manual_seed(5)
    _, module = fit(first, **options)
    torch.manual_seed(5)
    fit(second, **options | more)
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
    return module


def test_a_step_that_does_not_fit_is_done_again_in_halves(caplog: pytest.LogCaptureFixture) -> None:
    """Bit for bit as if it had been cut so from the start: weights, batch norm and random numbers."""
    tight = Small(2)
    with caplog.at_level("WARNING"):
        module = trained_alike(tight, {"train": batches(4)}, Small(6), {"micro_batch_size": 2})
    assert tight.sizes[:6] == [6, 3, 2, 2, 2, 2]
    assert module.micro_batch_size == 2
    messages = [message for message in caplog.messages if "out of memory" in message]
    assert len(messages) == 2 and "micro-batches of 3 images instead of 6" in messages[0]


def test_running_out_in_the_middle_of_a_batch_counts_nothing_twice() -> None:
    tight = Small(6)
    tight.fails_at = 2  # the second half of the first batch
    trained_alike(tight, {"train": batches(1), "micro_batch_size": 3}, Small(6), {"micro_batch_size": 2})
    assert tight.sizes[:5] == [3, 3, 2, 2, 2]


class HoldsMemory(Callback):
    """Memory that a validation of `net` needs, until it is asked for."""

    def __init__(self, net: Small) -> None:
        self.net = net
        self.asked: list[bool] = []

    def on_validation_start(self, *_: Any) -> None:
        self.net.val_holds = 2

    def on_out_of_memory(self, trainer: Any, pl_module: Any, batch: Any) -> None:
        self.net.val_holds = 6
        self.asked.append(trainer.training)


@pytest.mark.parametrize("val_flip", [False, True])
def test_a_validation_that_does_not_fit_is_repeated_without_the_memory_of_callbacks(val_flip: bool) -> None:
    torch.manual_seed(5)
    holder = HoldsMemory(tight := Small(6))
    tight_trainer, _ = fit(tight, batches(2), batches(3), holder, val_flip=val_flip)
    torch.manual_seed(5)
    trainer, _ = fit(Small(6), batches(2), batches(3), val_flip=val_flip)
    assert holder.asked == [False] * trainer.max_epochs
    assert tight_trainer.callback_metrics == trainer.callback_metrics and "val/loss" in trainer.callback_metrics


@pytest.mark.parametrize("num_images", [1, 7, 384])
@pytest.mark.parametrize("size", [None, 1, 3, 256, 500])
def test_the_parts_of_a_batch_are_as_few_and_as_equal_as_can_be(num_images: int, size: int | None) -> None:
    parts = MicroBatches(size).run(lambda part: (part.start, part.stop), num_images, None)
    assert [start for start, _ in parts] == [0, *(stop for _, stop in parts[:-1])] and parts[-1][1] == num_images
    sizes = [stop - start for start, stop in parts]
    assert len(sizes) == math.ceil(num_images / (size or num_images))
    assert max(sizes) - min(sizes) <= 1 and max(sizes) <= (size or num_images)


@pytest.mark.parametrize(
    ("error", "context"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", None),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", None),
        ("GET was unable to find an engine to execute this computation", None),
        ("CUDA error: out of memory", None),
        ("CUDA error: operation failed due to a previous error during capture", torch.OutOfMemoryError("CUDA")),
    ],
)
def test_memory_that_runs_out_below_torch_or_in_a_capture_counts_too(error: str, context: Exception | None) -> None:
    def work(part: slice) -> int:
        if part.stop - part.start > 2:
            raised = RuntimeError(error)
            raised.__context__ = context
            raise raised
        return part.start

    assert MicroBatches(None).run(work, 4, take_back=lambda: None) == [0, 2]


@pytest.mark.parametrize(("asked", "then"), [(None, 3), (6, 6)])
def test_a_resumed_run_keeps_the_size_unless_another_is_asked_for(asked: int | None, then: int, tmp_path: Path) -> None:
    file = tmp_path / "x.ckpt"
    trainer, _ = fit(Small(3), batches(4), max_epochs=1)
    trainer.save_checkpoint(file)
    assert torch.load(file, weights_only=True)["micro_batch_size"] == 3
    net = Small(6)
    fit(net, batches(4), ckpt_path=file, micro_batch_size=asked)
    assert net.sizes[0] == then


def test_a_run_that_cannot_go_on_names_the_key_to_set() -> None:
    """One image is too large, or several processes, which could not agree."""
    with pytest.raises(OutOfMemory, match=r"data\.image_size"):
        fit(Small(0), batches(1))

    def full(part: slice) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(OutOfMemory, match=r"model\.micro_batch_size=32"):
        MicroBatches(64).run(full, 256, take_back=None)


@pytest.mark.parametrize("callbacks", [(), (Synced(),)])
def test_micro_batches_move_the_statistics_of_batch_norm_as_one_batch_does(callbacks: tuple[Callback, ...]) -> None:
    """After a step of k parts with means m_1 to m_k: running = a^k running + (1 - a)(a^(k-1) m_1 + ... + m_k)."""
    images = batches(1)[0].images
    for rule, keep in (("per_micro_batch", 0.9), ("per_step", 0.9 ** (1 / 3))):
        norm = nn.BatchNorm2d(3)
        net = nn.Sequential(norm, nn.Flatten(), nn.Linear(48, 3))
        fit(net, batches(1), None, *callbacks, **OF_THREE | {"batch_norm_momentum": rule})
        mean, var = torch.zeros(3), torch.ones(3)
        for part in images.split(2):
            channels = part.transpose(0, 1).flatten(1)
            mean, var = keep * mean + (1 - keep) * channels.mean(1), keep * var + (1 - keep) * channels.var(1)
        torch.testing.assert_close(norm.running_mean, mean)
        torch.testing.assert_close(norm.running_var, var)
