"""Ends the run with a precise message if a loss is NaN or infinite."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from imagenet_opt.errors import NonFiniteLoss
from imagenet_opt.model.step_history import FILE, StepHistory

_REMEDY = "lower optimizer.lr, or set model.max_grad_norm=1 or trainer.precision=32-true"


def _alone(decision: bool) -> bool:
    return decision


class NaNGuard:
    """Watches the losses of all steps; only the methods `stop_*` wait for the device."""

    def __init__(self) -> None:
        self._recent = StepHistory()
        self.begin(_alone, Path(FILE))

    def begin(self, agree: Callable[[bool], bool], file: Path) -> None:
        """Start watching. agree: whether something is true in any process. file: for the samples of the last steps."""
        self._agree = agree
        self._file = file

    def check(self, step: int, loss: Tensor, indices: Tensor) -> None:
        """Note a step's loss () and samples (N,)."""
        self._recent.add(step, loss, indices)

    @property
    def overdue(self) -> bool:
        """Whether enough steps were noted since the last `stop_if_bad` that it should be called."""
        return self._recent.overdue

    def stop_if_bad(self) -> None:
        """Raise NonFiniteLoss if a loss since the last call was not finite. One host sync."""
        bad = self._recent.first_bad()
        if self._agree(bad is None):
            return
        if bad is None:
            raise NonFiniteLoss(f"the loss of another process is not finite; {_REMEDY}")
        raise NonFiniteLoss(f"the loss is {self._recent.loss(bad)} at step {bad}; {_REMEDY}{self._write(bad)}")

    def stop_if_worthless(self, tensors: Iterable[Tensor], num_steps: int) -> None:
        """Like `stop_if_bad`, also for weights that are not finite, which happens a step before the loss shows it.
        Two host syncs."""
        self.stop_if_bad()
        if not self._agree(bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all())):
            raise NonFiniteLoss(f"weights are NaN or infinite after {num_steps} steps, though no loss was; {_REMEDY}")

    def _write(self, step: int) -> str:
        try:
            self._recent.write(self._file, step)
        except OSError:  # a full disk must not hide why the run stops
            return ""
        return f"; its samples and those of the steps before are in {self._file}"
