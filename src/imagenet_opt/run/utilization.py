"""Logs means of the values that a sampler reads in the background of a fit."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.measure.telemetry.sampler import Readings, Sampler
from imagenet_opt.run.rows import is_logging_step, log_numbers


class Utilization(Callback):
    """Means since the last logged row, of rank 0, under the keys `<name>/<key of the reading>`.

    Sampling begins after the first step, because that step may compile for minutes. Validation during the fit is
    included. A row without a reading since the last row has no value.
    """

    def __init__(self, name: str, *, interval_seconds: float) -> None:
        self._sampler = Sampler(name, interval_seconds=interval_seconds)
        self._source: Readings | None = None

    def readings(self, trainer: Trainer) -> Readings | None:
        """The readings that rank 0 samples; None for no readings. Every rank calls this method."""
        raise NotImplementedError

    def summary(self) -> dict[str, float]:
        """Means over the fit after its first step, under the logged keys."""
        return self._sampler.means()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._sampler.clear()
        readings = self.readings(trainer)
        self._source = readings if trainer.is_global_zero else None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._source is not None:
            self._sampler.start(self._source)
            self._source = None
        if is_logging_step(trainer):
            log_numbers(trainer, self._sampler.pop_metrics())

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._sampler.stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._sampler.stop()
