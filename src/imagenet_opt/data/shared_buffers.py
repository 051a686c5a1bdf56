"""Shared memory in which workers hand over batches, used again and again.

Fresh shared memory costs as much as a sixth of decoding: the kernel finds and clears every page of it anew.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

_ROUNDING = 2**20
"""Bytes to which buffers are rounded up, so that caching allocators can use their blocks again."""
_SPARE = 1.125
"""A slot's size over its first batch's, as ragged batches differ."""


class Lease(NamedTuple):
    """Which slot a batch is in. `number` tells it from later batches of the same slot."""

    worker: int
    slot: int
    number: int


class SharedBufferPool:
    """Shared buffers, `depth` for each worker, and which of them hold a batch that is still needed.

    A worker takes one, the process that trains gives it back once the batch is copied; without a free one, memory is
    fresh. Also counts the images that each worker has made and that were delivered.
    """

    def __init__(self, *, num_workers: int, depth: int) -> None:
        shape = (max(1, num_workers), depth)
        self.holding = torch.zeros(shape, dtype=torch.int64).share_memory_()  # numbers of leases; 0 is free
        self.made = torch.zeros(shape[0], dtype=torch.int64).share_memory_()
        self._num_delivered = 0  # of all epochs, as `made` counts
        self._buffers: dict[int, Tensor] = {}
        self._number = 0
        self._place = (0, 0, 0)
        self._seen: dict[tuple[int, int], Tensor] = {}

    def new_batch(self, epoch: int, step: int, part: int) -> None:
        """Called in a worker for each batch or part. With a new epoch, or one begun anew, all earlier batches are done
        with."""
        place = (epoch, step, part)
        if epoch != self._place[0] or place <= self._place:
            self.holding[_worker()] = 0
        self._place = place

    def acquire(self, num_bytes: int) -> tuple[Tensor, Lease | None]:
        """uint8 (num_bytes or more,), of any content. In the process that trains it is ordinary memory."""
        size = rounded_bytes(num_bytes)
        if get_worker_info() is None:
            return torch.empty(size, dtype=torch.uint8), None
        worker = _worker()
        for slot, number in enumerate(self.holding[worker].tolist()):
            if number == 0:
                if slot not in self._buffers or len(self._buffers[slot]) < size:
                    self._buffers[slot] = shared_bytes(slot_bytes(num_bytes))
                self._number += 1
                self.holding[worker, slot] = self._number
                return self._buffers[slot], Lease(worker, slot, self._number)
        return shared_bytes(size), None

    def count(self, num_images: int) -> None:
        """Called in a worker when a batch or part is made."""
        self.made[_worker()] += num_images

    @property
    def num_made(self) -> int:
        """Images that all workers have made."""
        return int(self.made.numpy().sum())

    def restart(self) -> None:
        """An epoch begins, and all batches of earlier epochs are done with. Called before a worker has a key of it."""
        self._num_delivered = self.num_made

    def deliver(self, num_images: int) -> None:
        """A batch has reached the process that trains."""
        self._num_delivered += num_images

    @property
    def num_ready(self) -> int:
        """Images of this epoch that are made and not delivered."""
        return max(0, self.num_made - self._num_delivered)

    def keep_mapped(self, lease: Lease | None, pixels: Tensor) -> None:
        """Keep the memory mapped here, so that the next batch in that slot need not map it again."""
        if lease is not None:
            self._seen[lease.worker, lease.slot] = pixels

    def release(self, lease: Lease | None) -> None:
        """The batch is copied, or dropped. Does nothing when its slot holds a later one by now."""
        if lease is not None and int(self.holding[lease.worker, lease.slot]) == lease.number:
            self.holding[lease.worker, lease.slot] = 0


def _worker() -> int:
    info = get_worker_info()
    return 0 if info is None else info.id


def slot_bytes(num_bytes: int) -> int:
    """Shared memory that a slot takes whose first batch has `num_bytes`."""
    return int(rounded_bytes(num_bytes) * _SPARE)


def rounded_bytes(num_bytes: int) -> int:
    """Bytes of a buffer for `num_bytes`."""
    return -(-num_bytes // _ROUNDING) * _ROUNDING


def shared_bytes(size: int) -> Tensor:
    """uint8 (size,), of any content. Raises RuntimeError where shared memory is full."""
    return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size, device="cpu"))
