"""Trains on small images first and on larger images later."""

from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.nn.functional import interpolate

from imagenet_opt.config.length import epochs_of
from imagenet_opt.data.batch import need_images, set_images
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.errors import ConfigError
from imagenet_opt.run.rows import is_logging_step, log_numbers

_ROUNDING = 0.01
"""Tolerance in epochs for rounded shares: 0.7917 of 24 epochs means epoch 19."""


class ResolutionSchedule(Callback):
    """Training images grow in steps from `start` to `end` pixels, between the shares `grow_from` and `grow_until` of
    the run's epochs.

    Before and after, the size stays; sizes are multiples of `step`, so that few sizes are compiled. The size of
    validation images does not change. This package's loader makes images of that size; a
    data module that fits memory to the largest images of the run reads `largest_size`. Images of any other loader are
    resized on the device, in the batch, which is a list [images, ...], or a dict or an object with `images`; list
    this callback before acceleration then.
    Source: progressive resizing as in FFCV's ImageNet recipe (160 to 192, arXiv 2306.12517).

    | key | unit |
    |---|---|
    | `resolution` | pixels of a side of the training images |
    """

    def __init__(
        self, *, start: int = 160, end: int = 192, grow_from: float = 0.0, grow_until: float = 0.8, step: int = 32
    ) -> None:
        if step < 1 or start % step or end % step or min(start, end) < 1:
            raise ConfigError(
                f"callbacks.resolution_schedule: start={start} and end={end} must be multiples of step={step}"
            )
        if not 0 <= grow_from <= grow_until <= 1:
            raise ConfigError(
                f"callbacks.resolution_schedule: grow_from={grow_from} and grow_until={grow_until} must be shares of "
                "the run, 0 to 1, in this order"
            )
        self.start, self.end, self.step = start, end, step
        self.grow_from, self.grow_until = grow_from, grow_until

    @property
    def largest_size(self) -> int:
        """Largest image side of any epoch, in pixels."""
        return max(self.start, self.end)

    def size_of(self, epoch: int, num_epochs: int) -> int:
        """Image side in `epoch` of `num_epochs`, in pixels."""
        first, last = self.grow_from * num_epochs, self.grow_until * num_epochs
        passed = max(0.0, epoch - first + _ROUNDING)
        share = min(1.0, passed / (last - first)) if last > first else float(passed > 0)
        num_steps = int(abs(self.end - self.start) // self.step * share)
        return self.start + num_steps * (self.step if self.end > self.start else -self.step)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = trainer.train_dataloader
        self._size_of = partial(self.size_of, num_epochs=max(1, epochs_of(trainer)))
        self._resize_here = not isinstance(loader, DevicePrefetcher)
        if isinstance(loader, DevicePrefetcher):
            loader.sampler.size_of = self._size_of

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._resize_here:
            return
        images = need_images(batch, "remove this callback with ~callbacks.resolution_schedule")
        side = self._size_of(trainer.current_epoch)
        set_images(batch, interpolate(images, size=(side, side), mode="bilinear", antialias=True))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if is_logging_step(trainer):
            log_numbers(trainer, {"resolution": self._size_of(trainer.current_epoch)})
