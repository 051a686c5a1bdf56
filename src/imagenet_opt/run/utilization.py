"""The recorder of a fit, which all callbacks share, and callbacks that log means of its columns."""

from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.measure.telemetry.gpu import device_names
from imagenet_opt.measure.telemetry.recorder import Recorder, Totals, means
from imagenet_opt.run.rows import is_logging_step, log_numbers

_recorders: "WeakKeyDictionary[Trainer, Recorder]" = WeakKeyDictionary()


def recorder_of(trainer: Trainer) -> Recorder:
    """The recorder of this fit; starts it at the first call. Call in `setup`, and `stop` it in `on_exception` and
    `teardown`: the first callback to do so ends it for all."""
    recorder = _recorders.get(trainer)
    if recorder is None or not recorder.is_running:
        device = trainer.strategy.root_device
        recorder = _recorders[trainer] = Recorder(device_names(device.index) if device.type == "cuda" else None)
    return recorder


class Utilization(Callback):
    """Means of the recorder's columns since the last logged row, of rank 0. keys: column -> key of the metric.

    The first step is left out, because that step may compile for minutes. Validation during the fit is included. A row
    without a sample since the last row has no value.
    """

    keys: ClassVar[dict[str, str]]

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._first: Totals | None = None
        self._last: Totals = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            self._recorder, self._first = recorder_of(trainer), None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._recorder is None:
            return
        totals = self._recorder.totals
        if self._first is None:
            self._first = self._last = totals
        if is_logging_step(trainer):
            log_numbers(trainer, self._means(self._last, totals))
            self._last = totals

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()

    def summary(self) -> dict[str, float]:
        """Means over the fit after its first step, under the logged keys."""
        return {} if self._first is None else self._means(self._first, self._last)

    def _stop(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()
            self._last, self._recorder = self._recorder.totals, None

    def _means(self, before: Totals, after: Totals) -> dict[str, float]:
        found = means(before, after)
        return {key: found[column] for column, key in self.keys.items() if column in found}
