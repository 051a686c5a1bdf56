"""Keeps losses and samples of the last steps on the device until they are needed."""

import json
from collections import deque
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

FILE = "nonfinite.json"
_KEPT = 32
_MOST_UNSEEN = 1000


class Step(NamedTuple):
    number: int
    loss: Tensor
    indices: Tensor


class StepHistory:
    """The steps since the last check, and enough before them to report 32. Adding costs no host sync. `overdue` if
    so many steps were added that a check is due."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()
        self._num_unseen = 0

    @property
    def overdue(self) -> bool:
        return self._num_unseen >= _MOST_UNSEEN

    def add(self, number: int, loss: Tensor, indices: Tensor) -> None:
        """loss: () of the step; indices: int64 (N,) of its samples; both are copied."""
        self._steps.append(Step(number, loss.detach().clone(), indices.clone()))
        self._num_unseen += 1

    def first_bad(self) -> int | None:
        """The first step since the last check whose loss is not finite. One host sync; none if nothing is new."""
        num_unseen, self._num_unseen = self._num_unseen, 0
        if num_unseen == 0:
            return None
        unseen = list(self._steps)[-num_unseen:]
        finite = torch.stack([step.loss for step in unseen]).isfinite().tolist()
        bad = next((step.number for step, fine in zip(unseen, finite, strict=True) if not fine), None)
        while bad is None and len(self._steps) > _KEPT:
            self._steps.popleft()
        return bad

    def loss(self, number: int) -> float:
        return next(step.loss.item() for step in self._steps if step.number == number)

    def write(self, path: Path, last: int) -> None:
        """Write step `last` and up to 31 steps before it as JSON: step, loss (as text, since JSON has no NaN),
        sample indices."""
        steps = [step for step in self._steps if step.number <= last][-_KEPT:]
        batches = [
            {"step": step.number, "loss": repr(step.loss.item()), "indices": step.indices.tolist()} for step in steps
        ]
        path.write_text(json.dumps({"step": last, "batches": batches}) + "\n")
