"""Estimates the remaining time of a fit."""

import math

from lightning.pytorch import Trainer


def seconds_left(trainer: Trainer, *, batches_per_second: float, validation_seconds: float | None) -> float | None:
    """Seconds to the end of the fit; None where the fit has no known end. Call in `on_train_batch_end`.

    batches_per_second: present training rate. validation_seconds: duration of the last validation; None leaves
    validations out.
    """
    total = trainer.estimated_stepping_batches * trainer.accumulate_grad_batches
    if not math.isfinite(total) or not batches_per_second > 0:
        return None
    done = trainer.global_step * trainer.accumulate_grad_batches
    seconds = max(0, total - done) / batches_per_second
    if validation_seconds is not None and (interval := _validation_interval(trainer)) > 0:
        # The validation after the present batch has not started.
        seconds += validation_seconds * (int(total / interval) - int(max(0, done - 1) / interval))
    return seconds


def _validation_interval(trainer: Trainer) -> float:
    """Mean number of training batches between validations; 0 without validation."""
    batches = trainer.val_check_batch
    if not trainer.enable_validation or batches is None or not math.isfinite(batches):
        return 0.0
    return float(batches * (trainer.check_val_every_n_epoch or 1))


def duration(seconds: float) -> str:
    """Format as m:ss, and as h:mm:ss from one hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
