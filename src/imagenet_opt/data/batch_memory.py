"""The memory of batches: shared memory that workers reuse, and copies of all tensors of a batch together.

New shared memory costs a sixth of the time of decoding, because the kernel must find and clear each page.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from imagenet_opt.private_api import new_shared_storage

_ROUNDING = 2**20
"""Buffers are rounded up to a multiple of these bytes, so that caching allocators can reuse their blocks."""
_SPARE = 1.125
"""Size of a slot, as a multiple of its first batch, because the sizes of ragged batches differ."""
_ALIGNMENT = 16
"""Bytes between which tensors of a block start: Triton compiles a kernel again for tensors that start elsewhere."""
_DEVICE_BLOCK = 16 * 2**20
"""Larger tensors take a multiple of these bytes on a device. Ragged batches all have other sizes; with few sizes the
device's allocator soon has a block for each. Our choice: a batch takes 40 to 120 MB."""


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


@dataclass
class TensorFields:
    """Tensors in one block of memory are copied together, as one tensor of bytes."""

    def pin_memory(self) -> Self:
        """The object in page-locked memory: tensors that are elsewhere are copied. The DataLoader looks for a method of
        this name."""
        return self._copied(Tensor.pin_memory)

    def share_memory(self) -> Self:
        """A copy in shared memory. Tensors in ordinary memory go into one block, because each block costs the receiver
        a file descriptor.

        Raises RuntimeError if shared memory is full. Otherwise the worker's queue would lose the batch, and the
        training process would wait forever.
        """
        return replace(self, **_in_one_block({k: v for k, v in self.tensors_by_name().items() if not v.is_shared()}))

    def to(self, device: torch.device | str, *args: Any, non_blocking: bool = False, **kwargs: Any) -> Self:
        """A copy on `device`."""
        return self._copied(lambda tensor: _sent(tensor, torch.device(device), non_blocking))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory until `stream` has finished the work that is queued now."""
        for tensor in self.tensors_by_name().values():
            tensor.record_stream(stream)

    def _copied(self, copy: Callable[[Tensor], Tensor]) -> Self:
        copies: dict[str, Any] = {}
        blocks: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in self.tensors_by_name().items():
            if tensor.is_contiguous():
                blocks[tensor.untyped_storage().data_ptr()][name] = tensor
            else:
                copies[name] = copy(tensor)
        for tensors in blocks.values():
            copies |= _copied_together(tensors, copy)
        return replace(self, **copies)

    def tensors_by_name(self) -> dict[str, Tensor]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def concatenated(parts: list[Tensor]) -> Tensor:
    """One tensor from its parts, on their device."""
    first, num_bytes = parts[0], sum(part.nbytes for part in parts)
    is_large = _takes_blocks(first, num_bytes, first.device)
    return torch.cat(parts, out=_device_bytes(num_bytes, first.device)) if is_large else torch.cat(parts)


def _sent(tensor: Tensor, device: torch.device, non_blocking: bool) -> Tensor:
    if _takes_blocks(tensor, tensor.nbytes, device):
        return _device_bytes(tensor.nbytes, device).copy_(tensor, non_blocking=non_blocking)
    return tensor.to(device, non_blocking=non_blocking)


def _takes_blocks(tensor: Tensor, num_bytes: int, device: torch.device) -> bool:
    """Whether bytes like those of `tensor` take whole blocks on the device."""
    return num_bytes >= _DEVICE_BLOCK and tensor.dtype == torch.uint8 and tensor.ndim == 1 and device.type != "cpu"


def _device_bytes(num_bytes: int, device: torch.device) -> Tensor:
    """uint8 (num_bytes,), uninitialised, at the start of a block of a rounded size."""
    rounded = -(-num_bytes // _DEVICE_BLOCK) * _DEVICE_BLOCK
    return torch.empty(rounded, dtype=torch.uint8, device=device)[:num_bytes]


def _in_one_block(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Copies of the tensors as parts of one block of shared memory."""
    sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors.values()]
    parts = shared_bytes(sum(sizes)).split(sizes)
    return {
        name: part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        for (name, tensor), part in zip(tensors.items(), parts, strict=True)
    }


def _copied_together(tensors: dict[str, Tensor], copy: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Copies of contiguous tensors in one block of memory, made by one call of `copy` with their bytes."""
    starts = {name: tensor.storage_offset() * tensor.itemsize for name, tensor in tensors.items()}
    first = min(starts.values()) // _ALIGNMENT * _ALIGNMENT
    last = max(starts[name] + tensor.nbytes for name, tensor in tensors.items())
    storage = next(iter(tensors.values())).untyped_storage()
    block = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    copied = copy(block[first:last])
    return {
        name: copied[starts[name] - first :][: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for name, tensor in tensors.items()
    }
