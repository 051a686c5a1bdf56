"""Batch keys: what the sampler yields, what a worker gets, what a resume seeks."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch.utils.data import Sampler


class BatchKey(NamedTuple):
    """Names one batch of the run. `step` counts batches within the epoch; `image_size` is in pixels."""

    epoch: int
    step: int
    image_size: int


class BatchKeys(Sampler[BatchKey]):
    """Yields the keys of one epoch, from any step on.

    Lightning calls `set_epoch` at the start of each epoch; `seek` is what a resumed run calls before that.
    size_of: epoch -> image_size; may be replaced before an epoch's first batch.
    """

    def __init__(self, *, num_batches: int, size_of: Callable[[int], int]) -> None:
        self.num_batches = num_batches
        self.size_of = size_of
        self.epoch = 0
        self.first_step = 0

    def set_epoch(self, epoch: int) -> None:
        """Start `epoch` at its first batch, unless a resume is already inside it."""
        if epoch != self.epoch:
            self.epoch, self.first_step = epoch, 0

    def seek(self, epoch: int, step: int) -> None:
        """Go on inside `epoch`, with `step` batches of it already done."""
        self.epoch, self.first_step = epoch, step

    def __iter__(self) -> Iterator[BatchKey]:
        for step in range(self.first_step, self.num_batches):
            yield BatchKey(self.epoch, step, self.size_of(self.epoch))

    def __len__(self) -> int:
        return self.num_batches
