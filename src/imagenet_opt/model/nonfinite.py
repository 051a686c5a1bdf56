"""What happens when the loss is NaN or infinite: the run stops and says where, or the step is left out."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from imagenet_opt.errors import ConfigError, NonFiniteLoss
from imagenet_opt.model.recent_batches import FILE, RecentBatches

log = logging.getLogger(__name__)

_REMEDY = "lower optimizer.lr, or set model.max_grad_norm=1 or trainer.precision=32-true"


def _alone(decision: bool) -> bool:
    return decision


class NonFinite:
    """Watches the losses of all steps.

    mode: "stop" reads them when `stop_if_bad` is called, and waits for the device only there; "skip" in each step.
    max_skipped_steps: so many in a row may be left out.
    """

    def __init__(self, mode: Literal["stop", "skip"], max_skipped_steps: int) -> None:
        if mode not in ("stop", "skip"):
            raise ConfigError(f"model.on_nonfinite={mode!r} must be stop or skip")
        if max_skipped_steps < 1:
            raise ConfigError(f"model.max_skipped_steps={max_skipped_steps} must be at least 1")
        self.mode = mode
        self.max_skipped_steps = max_skipped_steps
        self.num_skipped = 0
        self.num_in_a_row = 0
        self.recent = RecentBatches()
        self.begin(_alone, Path(FILE))

    def begin(self, agree: Callable[[bool], bool], file: Path) -> None:
        """agree: whether something is true in all processes, given whether it is in this one. file: for the samples."""
        self._agree = agree
        self._file = file

    def must_skip(self, step: int, loss: Tensor, indices: Tensor) -> bool:
        """Note a step's loss () and samples (N,), and say whether to leave it out; with "stop" that is never so.

        Raises NonFiniteLoss when there were too many in a row.
        """
        self.recent.add(step, loss, indices)
        if self.mode == "stop":
            return False
        bad = self.recent.first_bad()
        if self._agree(bad is None):
            self.num_in_a_row = 0
            return False
        self.num_skipped += 1
        self.num_in_a_row += 1
        where = self._write(step) if bad is not None else ""
        if bad is not None and self.num_skipped.bit_count() == 1:  # 1, 2, 4, 8, ...: a run may have many
            log.warning(f"the loss is not finite at step {step}, which is left out; so far {self.num_skipped}{where}")
        if self.num_in_a_row > self.max_skipped_steps:
            raise NonFiniteLoss(
                f"the loss is not finite in {self.num_in_a_row} steps in a row, up to step {step} "
                f"(model.max_skipped_steps={self.max_skipped_steps}); {_REMEDY}{where}"
            )
        return True

    def stop_if_bad(self) -> None:
        """Raises NonFiniteLoss when a loss since the last call was not finite. One host sync."""
        bad = self.recent.first_bad()
        if self._agree(bad is None):
            return
        if bad is None:
            raise NonFiniteLoss(f"the loss of another process is not finite; {_REMEDY}")
        raise NonFiniteLoss(f"the loss is {self.recent.loss(bad)} at step {bad}; {_REMEDY}{self._write(bad)}")

    def stop_if_worthless(self, tensors: Iterable[Tensor], num_steps: int) -> None:
        """As `stop_if_bad`, also when a weight is not finite, as happens a step before the loss shows it. Two."""
        self.stop_if_bad()
        if not self._agree(bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all())):
            raise NonFiniteLoss(f"weights are NaN or infinite after {num_steps} steps, though no loss was; {_REMEDY}")

    def state_dict(self) -> dict[str, int]:
        return {"skipped_steps": self.num_skipped, "skipped_steps_in_a_row": self.num_in_a_row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_skipped = state["skipped_steps"]
        self.num_in_a_row = state["skipped_steps_in_a_row"]

    def _write(self, step: int) -> str:
        try:
            self.recent.write(self._file, step)
        except OSError:  # a full disk must not hide why the run stops
            return ""
        return f"; its samples and those of the steps before are in {self._file}"
