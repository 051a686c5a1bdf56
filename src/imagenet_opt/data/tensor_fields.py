"""Objects with tensors as fields, which are copied together."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from imagenet_opt.data.shared_buffers import shared_bytes

_ALIGNMENT = 16
"""Bytes between which tensors of a block start: Triton compiles a kernel again for tensors that start elsewhere."""
_DEVICE_BLOCK = 16 * 2**20
"""Larger tensors take a multiple of these bytes on a device. Ragged batches all have other sizes; with few sizes the
device's allocator soon has a block for each. Our choice: a batch takes 40 to 120 MB."""


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
