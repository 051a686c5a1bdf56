"""A batch on its way from a worker to the network."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from imagenet_opt.data.keys import BatchKey
from imagenet_opt.data.shared_buffers import Ticket, shared_bytes
from imagenet_opt.errors import ConfigError

_ALIGNMENT = 8
"""Bytes; of the largest element of a tensor."""


class Making(NamedTuple):
    """What it took a worker to make a batch. Times in seconds; `made_at` on the clock `time.monotonic`.

    read_seconds: blocked until the bytes were there. reads_in_flight: requests that the reader allowed itself.
    skipped: (index, reason) of samples that nothing could open, replaced by others. num_given_up: images that were
    decoded whole because region decode gave up. codec_error: why the worker has no region decoder; "" where it has one.
    """

    read_seconds: float
    decode_seconds: float
    num_bytes: int
    reads_in_flight: int
    made_at: float
    skipped: tuple[tuple[int, str], ...]
    num_given_up: int = 0
    codec_error: str = ""


@dataclass
class Samples:
    """What every batch has: labels int64 (N,), or float (N, num_classes) once mixed; indices int64 (N,), places in the
    index; valid bool (N,), False for padding. ticket: where it lies in shared memory."""

    labels: Tensor
    indices: Tensor
    valid: Tensor
    key: BatchKey
    making: Making
    ticket: Ticket | None

    def pin_memory(self) -> Self:
        """The same batch in page-locked memory; the DataLoader calls this by name."""
        return self._each(Tensor.pin_memory)

    def share_memory(self) -> Self:
        """The same batch in shared memory: tensors that are not there yet go into one block, because each block costs
        the receiver a file descriptor. Raises RuntimeError where shared memory is full. Otherwise the queue out of a
        worker would lose the batch, and the process that trains would wait without end."""
        return replace(self, **_in_one_block({k: v for k, v in self._tensors().items() if not v.is_shared()}))

    def to(self, device: torch.device | str, *args: Any, non_blocking: bool = False, **kwargs: Any) -> Self:
        """The same batch on `device`."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory until what `stream` has been given so far is done."""
        for tensor in self._tensors().values():
            tensor.record_stream(stream)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self._tensors().items()}
        return replace(self, **changed)

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def __len__(self) -> int:
        return len(self.indices)


def _in_one_block(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Copies of the tensors, as parts of one block of shared memory."""
    sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors.values()]
    parts = shared_bytes(sum(sizes)).split(sizes)
    copies = {}
    for (name, tensor), part in zip(tensors.items(), parts, strict=True):
        copies[name] = part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
    return copies


@dataclass
class Batch(Samples):
    """Images of one size: uint8 (N, 3, size, size) from a worker; float and normalised once on the device."""

    images: Tensor

    @property
    def data(self) -> Tensor:
        return self.images


@dataclass
class RaggedBatch(Samples):
    """Crops of any size, end to end in one buffer, to be resized on the device.

    pixels: uint8 (num_bytes,); crop i is pixels[offsets[i]:] as (heights[i], widths[i], 3).
    heights, widths: int32 (N,); offsets: int64 (N,); flips: bool (N,), True for left and right exchanged.
    """

    pixels: Tensor
    heights: Tensor
    widths: Tensor
    offsets: Tensor
    flips: Tensor

    @property
    def data(self) -> Tensor:
        return self.pixels


def images_of(batch: Any) -> Tensor | None:
    """Of any loader's batch: a list or tuple [images, ...], or an object with `images`; None for other batches."""
    images = batch[0] if isinstance(batch, list | tuple) and batch else getattr(batch, "images", None)
    return images if isinstance(images, Tensor) else None


def need_images(batch: Any, remedy: str) -> Tensor:
    """`images_of` a batch in which `set_images` can exchange them. Raises ConfigError, which ends with the remedy."""
    if isinstance(batch, tuple) or (images := images_of(batch)) is None:
        raise ConfigError(
            f"no images in a batch that is a {type(batch).__name__}; expected a list [images, labels] or an object "
            f"with `images` and `labels`; {remedy}"
        )
    return images


def set_images(batch: Any, images: Tensor) -> None:
    if isinstance(batch, list):
        batch[0] = images
    else:
        batch.images = images
