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
    on_first_key: called before an epoch's first key, when no worker makes a batch of an earlier epoch any more.
    """

    def __init__(
        self, *, num_batches: int, size_of: Callable[[int], int], on_first_key: Callable[[], None] = lambda: None
    ) -> None:
        self.num_batches = num_batches
        self.size_of = size_of
        self.on_first_key = on_first_key
        self.epoch = 0
        self.first_step = 0

    def set_epoch(self, epoch: int) -> None:
        """Start `epoch` at its first batch, unless `seek` has chosen a step of it."""
        if epoch != self.epoch:
            self.epoch, self.first_step = epoch, 0

    def seek(self, epoch: int, step: int) -> None:
        """Go on inside `epoch`, with `step` batches of it already done."""
        self.epoch, self.first_step = epoch, step

    def __iter__(self) -> Iterator[BatchKey]:
        """The keys of the epoch that is set when the first key is asked for. The next pass starts at step 0."""
        epoch, first, self.first_step = self.epoch, self.first_step, 0
        self.on_first_key()
        for step in range(first, self.num_batches):
            yield BatchKey(epoch, step, self.size_of(epoch))

    def __len__(self) -> int:
        return self.num_batches
