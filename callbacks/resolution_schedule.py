"""Trains on small images first and on larger images later."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.nn.functional import interpolate

from imagenet_opt.data.batch import need_images, set_images
from imagenet_opt.errors import ConfigError
from imagenet_opt.run.logging_step import log_host_numbers


class ResolutionSchedule(Callback):
    """Training images grow in steps from `start` to `end` pixels, over the epochs `first_epoch` to `last_epoch`.

    Before and after these epochs the size stays; it is always a multiple of `step`, so that few sizes are compiled.
    Validation keeps its own size. A loader whose sampler has `size_of` (data/keys.py) makes images of that size; a
    data module that fits memory to the largest images of the run reads `largest_size`. Images of any other loader are
    resized on the device, in the batch, which is a list [images, ...] or has `images`; list this callback before
    acceleration then.
    Source: progressive resizing as in FFCV's ImageNet recipe (160 to 192, arXiv 2306.12517).

    | key | unit |
    |---|---|
    | `resolution` | pixels, at the start of each epoch |
    """

    def __init__(
        self, *, start: int = 160, end: int = 192, first_epoch: int = 0, last_epoch: int = 76, step: int = 32
    ) -> None:
        if step < 1 or start % step or end % step or min(start, end) < 1:
            raise ConfigError(
                f"callbacks.resolution_schedule: start={start} and end={end} must be multiples of step={step}"
            )
        if not 0 <= first_epoch <= last_epoch:
            raise ConfigError(
                f"callbacks.resolution_schedule: first_epoch={first_epoch} must be at least 0 and not after "
                f"last_epoch={last_epoch}"
            )
        self.start, self.end, self.step = start, end, step
        self.first_epoch, self.last_epoch = first_epoch, last_epoch

    @property
    def largest_size(self) -> int:
        """Largest image side of any epoch, in pixels."""
        return max(self.start, self.end)

    def size_of(self, epoch: int) -> int:
        """Image side in `epoch`, in pixels."""
        span = max(1, self.last_epoch - self.first_epoch)
        passed = min(span, max(0, epoch - self.first_epoch))
        num_steps = abs(self.end - self.start) // self.step * passed // span
        return self.start + num_steps * (self.step if self.end > self.start else -self.step)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        sampler: Any = getattr(trainer.train_dataloader, "sampler", None)
        self._resize_here = not hasattr(sampler, "size_of")
        if not self._resize_here:
            sampler.size_of = self.size_of

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._resize_here:
            return
        images = need_images(batch, "remove this callback with ~callbacks.resolution_schedule")
        side = self.size_of(trainer.current_epoch)
        set_images(batch, interpolate(images, size=(side, side), mode="bilinear", antialias=True))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 0:
            log_host_numbers(pl_module, {"resolution": self.size_of(trainer.current_epoch)})
