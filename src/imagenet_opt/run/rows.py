"""Rows of metrics: what is logged at a step reaches the loggers as one row, three steps later."""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt import private_api
from imagenet_opt.measure.telemetry.cuda_clock import Moment
from imagenet_opt.run.checkpoint.position import ends_epoch
from imagenet_opt.run.hooks import ShowsRows, callbacks_of
from imagenet_opt.run.loggers.run_logger import run_loggers

Numbers = Mapping[str, float]
LateNumbers = Numbers | Callable[[], Numbers]
_STEPS_LATE = 3
"""So many steps after its own a row is written; `StepsAhead` keeps the host fewer steps ahead of the device."""


def is_logging_step(trainer: Trainer) -> bool:
    """Whether a row is written after the present batch; call in `training_step` or `on_train_batch_end`.

    Every `log_every_n_steps` steps, and with accumulation only after the last
    batch of a step. An epoch of fewer steps also ends with a row.
    """
    is_short = trainer.num_training_batches < trainer.log_every_n_steps  # type: ignore[attr-defined]
    is_due = private_api.is_row_due(trainer) or (is_short and ends_epoch(trainer))
    return is_due and not private_api.is_accumulating(trainer)


def log_numbers(trainer: Trainer, numbers: LateNumbers) -> None:
    """Add numbers to the row of the present step, or to the next row if the step has none; at the end of an epoch, to
    a row of the last step.

    numbers: by metric name, or a function that is called in each process when the device has finished the step, so
    that reading a copy that the step has queued (`tensor.to("cpu", non_blocking=True)`) does not wait.
    """
    rows_of(trainer).parts.append(numbers)


def rows_of(trainer: Trainer) -> "Rows":
    """The rows of this trainer: its last callback, which the first call in a fit adds. A callback with `on_row`
    calls this function in `setup`."""
    callbacks = callbacks_of(trainer)
    rows = next((callback for callback in callbacks if isinstance(callback, Rows)), None)
    if rows is None:
        callbacks.append(rows := Rows())
        rows.begin(trainer)
    return rows


class StepsAhead:
    """Lets the host queue a step once the device has begun the step two before; never waits on a CPU.

    Every queued step keeps its batch in the device's memory. A step as one CUDA graph has few launches, so CUDA's own
    queue would hold about 15 such steps. The waiting host sleeps, which leaves its CPU to the loader's workers.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begun: deque[Moment] = deque()

    def begin(self) -> None:
        """Call before a step is queued."""
        self._begun.append(Moment(self._device))
        if len(self._begun) >= _STEPS_LATE:
            self._begun.popleft().wait()


@dataclass(frozen=True)
class _DueRow:
    """step: Lightning's number of the step, from 0. batch: number of the batch in its epoch, from 1. done: when the
    device has finished the step."""

    step: int
    batch: int
    parts: list[LateNumbers]
    done: Moment


class Rows(Callback):
    """Writes rows to the loggers and to `callback_metrics`, in place of Lightning. `log_numbers` adds this callback to
    the trainer.

    A row is written three steps later, under its own step, with what the module logged by Lightning's `log` at that
    step. With `StepsAhead` the host is at most two steps ahead of the device, so the device has finished the step and
    the host does not wait. Validations, checkpoints and the end of an epoch first write all rows. Then a
    callback with `on_row` (run/hooks.py) can show the row. Lightning's `log` needs 0.3 ms for each key.
    """

    def __init__(self) -> None:
        self.parts: list[LateNumbers] = []
        self._rows: deque[_DueRow] = deque()
        self._shown_by: list[ShowsRows] | None = None

    def begin(self, trainer: Trainer) -> None:
        private_api.replace_rows(trainer, partial(self._end_step, trainer))

    def _end_step(self, trainer: Trainer) -> None:
        step = private_api.logged_step(trainer)
        if is_logging_step(trainer):
            parts = [_logged(trainer), *self.parts]
            batch, done = trainer.fit_loop.epoch_loop.batch_idx + 1, Moment(trainer.strategy.root_device)
            self._rows.append(_DueRow(step, batch, parts, done))
            self.parts = []
        while self._rows and self._rows[0].step <= step - _STEPS_LATE:
            self._write(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write_all(trainer)
        parts, self.parts = self.parts, []
        _log(trainer, parts, private_api.logged_step(trainer) - 1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write_all(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """A resumed run does not log the rows before its checkpoint again."""
        self._write_all(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        with suppress(Exception):  # the first error is the one to show
            while self._rows and self._rows[0].done.is_reached():  # a device that hangs reaches nothing
                self._write(trainer)
        self.teardown(trainer, pl_module, "fit")  # Lightning does not call this hook after an error

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        private_api.restore_rows(trainer)
        if self in (callbacks := callbacks_of(trainer)):
            callbacks.remove(self)

    def _write_all(self, trainer: Trainer) -> None:
        while self._rows:
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        """Write the oldest row. Raises the errors of its functions."""
        row = self._rows.popleft()
        row.done.wait()
        numbers = _log(trainer, row.parts, row.step)
        if self._shown_by is None:  # asked once, since that takes 5 us for each callback
            self._shown_by = [callback for callback in callbacks_of(trainer) if isinstance(callback, ShowsRows)]
        for callback in self._shown_by:
            callback.on_row(trainer, row.batch, numbers)


def _logged(trainer: Trainer) -> LateNumbers:
    """What the module logged at this step by Lightning's `log`; copied to the host without a wait."""
    copies = {
        name: value.to("cpu", non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in private_api.logged_by_module(trainer).items()
    }
    return lambda: {name: float(value) for name, value in copies.items()}


def _log(trainer: Trainer, parts: list[LateNumbers], step: int) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for part in parts:
        numbers |= part() if callable(part) else part
    tensors = torch.tensor(list(numbers.values()), dtype=torch.float64).unbind()  # faster than one by one
    for known in (trainer.callback_metrics, trainer.logged_metrics):
        known.update(zip(numbers, tensors, strict=True))
    for logger in trainer.loggers if numbers else ():
        logger.log_metrics(numbers | {"epoch": trainer.current_epoch}, step=step)
        logger.save()
    return numbers


class TruncateLogs(Callback):
    """Lets loggers drop or hide the rows of steps that are trained again.

    The hook is called after every part has accepted the checkpoint, so a refused resume changes no metrics.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for logger in run_loggers(trainer):
            logger.truncate_after(trainer.global_step - 1)
