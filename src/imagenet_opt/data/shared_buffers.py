"""Reused shared memory in which workers hand over batches.

New shared memory costs a sixth of the time of decoding, because the kernel must find and clear each page.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from imagenet_opt.private_api import new_shared_storage

_ROUNDING = 2**20
"""Buffers are rounded up to a multiple of these bytes, so that caching allocators can reuse their blocks."""
_SPARE = 1.125
"""Size of a slot, as a multiple of its first batch, because the sizes of ragged batches differ."""


class Lease(NamedTuple):
    """Slot that holds a batch. `number` distinguishes the batch from later batches in the same slot."""

    worker: int
    slot: int
    number: int


class SharedBufferPool:
    """Shared buffers, `depth` for each worker, and which buffers hold a batch that is still needed.

    A worker acquires a buffer, and the training process releases the buffer once the batch is copied; without a free
    buffer the worker allocates memory. Also counts the images that each worker has made, and the delivered images.
    """

    def __init__(self, *, num_workers: int, depth: int) -> None:
        shape = (max(1, num_workers), depth)
        self.holding = torch.zeros(shape, dtype=torch.int64).share_memory_()  # numbers of leases; 0 is free
        self.made = torch.zeros(shape[0], dtype=torch.int64).share_memory_()
        self._num_delivered = 0  # over all epochs, as in `made`
        self._buffers: dict[int, Tensor] = {}
        self._number = 0
        self._place = (0, 0, 0)
        self._mapped: dict[tuple[int, int], Tensor] = {}

    def new_batch(self, epoch: int, step: int, part: int) -> None:
        """Begin a batch or part in its worker. A new epoch, or a restart of the epoch, frees all buffers."""
        place = (epoch, step, part)
        if epoch != self._place[0] or place <= self._place:
            self.holding[_worker()] = 0
        self._place = place

    def acquire(self, num_bytes: int) -> tuple[Tensor, Lease | None]:
        """uint8 (num_bytes or more,), uninitialised; in the training process, ordinary memory."""
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
        """Count the images of a batch or part that this worker has made."""
        self.made[_worker()] += num_images

    @property
    def num_made(self) -> int:
        """Images that all workers have made."""
        return int(self.made.numpy().sum())

    def restart(self) -> None:
        """Forget the ready images of earlier epochs. Called before a worker gets the first key of an epoch."""
        self._num_delivered = self.num_made

    def deliver(self, num_images: int) -> None:
        """Count the images of a batch that has reached the training process."""
        self._num_delivered += num_images

    @property
    def num_ready(self) -> int:
        """Images of this epoch that were made and not delivered."""
        return max(0, self.num_made - self._num_delivered)

    def keep_mapped(self, lease: Lease | None, pixels: Tensor) -> None:
        """Keep the memory mapped here, so that the next batch in the same slot is not mapped again."""
        if lease is not None:
            self._mapped[lease.worker, lease.slot] = pixels

    def release(self, lease: Lease | None) -> None:
        """Free the slot of a batch, unless the slot holds a later batch."""
        if lease is not None and int(self.holding[lease.worker, lease.slot]) == lease.number:
            self.holding[lease.worker, lease.slot] = 0


def _worker() -> int:
    info = get_worker_info()
    return 0 if info is None else info.id


def slot_bytes(num_bytes: int) -> int:
    """Size of a slot in shared memory, if its first batch has `num_bytes`."""
    return int(rounded_bytes(num_bytes) * _SPARE)


def rounded_bytes(num_bytes: int) -> int:
    """Bytes of a buffer for `num_bytes`."""
    return -(-num_bytes // _ROUNDING) * _ROUNDING


def shared_bytes(size: int) -> Tensor:
    """uint8 (size,), uninitialised, in shared memory. Raises RuntimeError if shared memory is full."""
    return torch.empty(0, dtype=torch.uint8).set_(new_shared_storage(size))
