"""Ends the run with a precise message if a loss is NaN or infinite."""

import json
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from imagenet_opt.errors import NonFiniteLoss

FILE = "nonfinite.json"
_NUM_REPORTED = 32
_NUM_KEPT = 1000
"""Steps whose losses are kept; a check is due before one that is not checked is dropped."""
_REMEDY = "lower optimizer.lr, or set model.max_grad_norm=1 or trainer.precision=32-true"


class _StepLoss(NamedTuple):
    number: int
    loss: Tensor
    indices: Tensor


class NaNGuard:
    """Keeps the losses and sample indices of the last steps on the device; only `stop_*` wait for the device. The sum
    of the losses, which is read late for each row of metrics, shows without a wait whether all are finite: `note`.

    all_agree: whether its argument is true in all processes. file: for the samples of the last steps.
    """

    def __init__(self, all_agree: Callable[[bool], bool], file: Path) -> None:
        self._all_agree, self._file = all_agree, file
        self._steps: deque[_StepLoss] = deque(maxlen=_NUM_KEPT)
        self._checked = -1

    def add(self, number: int, loss: Tensor, indices: Tensor) -> None:
        """Keep copies of a step's loss () and of the indices of its samples, int64 (N,). No host sync."""
        self._steps.append(_StepLoss(number, loss.clone(), indices.clone()))

    @property
    def is_full(self) -> bool:
        """Whether all steps that are kept are unchecked."""
        return len(self._steps) == _NUM_KEPT and self._steps[0].number > self._checked

    def note(self, number: int, *, is_finite: bool) -> None:
        """Call in each process with whether the losses of all processes are finite up to the step `number`. Raises
        NonFiniteLoss."""
        if not is_finite:
            self._stop(self._first_bad())
        self._checked = number

    def stop_if_bad(self) -> None:
        """Raise NonFiniteLoss if a loss since the last check was not finite. One host sync; none without new steps."""
        bad = self._first_bad()
        if not self._all_agree(bad is None):
            self._stop(bad)
        if self._steps:
            self._checked = self._steps[-1].number

    def _stop(self, bad: _StepLoss | None) -> NoReturn:
        if bad is None:
            raise NonFiniteLoss(f"the loss of another process is not finite; {_REMEDY}")
        raise NonFiniteLoss(f"the loss is {bad.loss.item()} at step {bad.number}; {_REMEDY}{self._report(bad)}")

    def stop_if_worthless(self, tensors: Iterable[Tensor], num_steps: int) -> None:
        """Like `stop_if_bad`, also for weights that are not finite; the loss shows this only one step later. Two host
        syncs."""
        self.stop_if_bad()
        if not self._all_agree(bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all())):
            raise NonFiniteLoss(f"weights are NaN or infinite after {num_steps} steps, though no loss was; {_REMEDY}")

    def _first_bad(self) -> _StepLoss | None:
        """The first step since the last check whose loss is not finite."""
        unchecked = [step for step in self._steps if step.number > self._checked]
        if not unchecked:
            return None
        finite = torch.stack([step.loss for step in unchecked]).isfinite().tolist()
        return next((step for step, is_finite in zip(unchecked, finite, strict=True) if not is_finite), None)

    def _report(self, bad: _StepLoss) -> str:
        """Write the step `bad` and up to 31 earlier steps as JSON, with losses as text, since JSON has no NaN.
        Returns the end of the error message."""
        steps = [step for step in self._steps if step.number <= bad.number][-_NUM_REPORTED:]
        batches = [{"step": number, "loss": repr(loss.item()), "indices": i.tolist()} for number, loss, i in steps]
        try:
            self._file.write_text(json.dumps({"step": bad.number, "batches": batches}) + "\n")
        except OSError:  # a full disk must not hide why the run stops
            return ""
        return f"; its samples and those of the steps before are in {self._file}"
