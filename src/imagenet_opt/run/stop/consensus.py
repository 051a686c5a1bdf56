"""Lets all processes of a run stop, or save, at the same batch."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_TIMEOUT = timedelta(minutes=30)


class StopConsensus:
    """Gives every process the maximum of the numbers of all processes, one batch late.

    A number that is passed at one batch is returned at the next batch, so that the exchange over the host's network
    overlaps with the step and no process waits. A number above 0 is returned once. Every process must make the same
    number of calls.
    """

    def __init__(self) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._group: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT) if several else None
        self._number = torch.zeros(1, dtype=torch.int64)
        self._pending: dist.Work | None = None

    def __call__(self, number: int) -> int:
        """Raises RuntimeError when another process has died."""
        if self._group is None:
            return number
        if self._pending is not None:
            self._pending.wait()
        agreed = int(self._number)
        self._number[0] = 0 if agreed else number
        self._pending = dist.all_reduce(self._number, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed
