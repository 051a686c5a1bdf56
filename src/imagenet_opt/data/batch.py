"""A batch on its way from a worker to the network."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from imagenet_opt.data.keys import BatchKey
from imagenet_opt.data.shared_buffers import Lease, shared_bytes
from imagenet_opt.data.transforms.augment import Augmentation, augment, erase
from imagenet_opt.data.transforms.resize import ImageFormat, normalize, resize_torch
from imagenet_opt.errors import ConfigError

_ALIGNMENT = 16
"""Bytes between which tensors of a block start: Triton compiles a kernel again for tensors that start elsewhere."""
_DEVICE_BLOCK = 16 * 2**20
"""Larger tensors take a multiple of these bytes on a device. Ragged batches all have other sizes; with few sizes the
device's allocator soon has a block for each. Our choice: a batch takes 40 to 120 MB."""


class LoadStats(NamedTuple):
    """Facts about the work of a worker on a batch.

    read_seconds: time blocked on the storage. decode_seconds: computing, of reads too. cpu_wait_seconds: time in which
    a thread of the worker was ready, but no CPU was free. The three add up to the seconds that the batch took.
    reads_in_flight: limit of simultaneous requests. made_at: by `time.monotonic`.
    skipped: (index, reason) of samples that could not be opened and were replaced. events: see `ReadAhead.take_events`,
    since the worker's last batch, also of reads for later batches. notes: see `Decoder.take_notes`.
    """

    read_seconds: float
    decode_seconds: float
    cpu_wait_seconds: float
    num_bytes: int
    reads_in_flight: int
    made_at: float
    skipped: tuple[tuple[int, str], ...]
    events: Counter[str]
    notes: tuple[str, ...] = ()

    @classmethod
    def of_parts(cls, parts: "Sequence[LoadStats]") -> "LoadStats":
        """Facts about a batch in parts: sums, and the largest reads_in_flight and made_at."""
        read, decode, queued, num_bytes, in_flight, made_at, skipped, events, notes = zip(*parts, strict=True)
        made = sum(read), sum(decode), sum(queued), sum(num_bytes), max(in_flight), max(made_at)
        return cls(*made, sum(skipped, ()), sum(events, Counter()), sum(notes, ()))


@dataclass
class BatchBase:
    """Fields of every batch. Tensors in one block of memory are copied together, as one tensor of bytes.

    labels: int64 (N,), or float (N, num_classes) after mixing, or the targets of the loader. indices: int64 (N,),
    positions in the index. valid: bool (N,), False for padding. lease: position in shared memory. augmentation: changes
    of the images on the device.
    """

    labels: Tensor
    indices: Tensor
    valid: Tensor
    key: BatchKey
    stats: LoadStats
    lease: Lease | None
    augmentation: Augmentation | None = field(default=None, kw_only=True)

    def clone(self) -> Self:
        """A copy in new ordinary memory."""
        return replace(self._copied(Tensor.clone), lease=None)

    def pin_memory(self) -> Self:
        """The batch in page-locked memory: tensors that are elsewhere are copied. The DataLoader looks for a method of
        this name."""
        return self._copied(Tensor.pin_memory)

    def share_memory(self) -> Self:
        """A copy in shared memory. Tensors in ordinary memory go into one block, because each block costs the receiver
        a file descriptor.

        Raises RuntimeError if shared memory is full. Otherwise the worker's queue would lose the batch, and the
        training process would wait forever.
        """
        return replace(self, **_in_one_block({k: v for k, v in self._tensors().items() if not v.is_shared()}))

    def to(self, device: torch.device | str, *args: Any, non_blocking: bool = False, **kwargs: Any) -> Self:
        """A copy on `device`."""
        return self._copied(lambda tensor: _sent(tensor, torch.device(device), non_blocking))

    def only(self, rows: Tensor) -> Self:
        """These rows of the batch. rows: bool (N,)."""
        if bool(rows.all()):
            return self
        chosen: dict[str, Any] = {name: value[rows] for name, value in self._tensors().items() if name != "pixels"}
        return replace(self, **chosen)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory until `stream` has finished the work that is queued now."""
        for tensor in self._tensors().values():
            tensor.record_stream(stream)

    def _copied(self, copy: Callable[[Tensor], Tensor]) -> Self:
        copies: dict[str, Any] = {}
        blocks: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in self._tensors().items():
            if tensor.is_contiguous():
                blocks[tensor.untyped_storage().data_ptr()][name] = tensor
            else:
                copies[name] = copy(tensor)
        for tensors in blocks.values():
            copies |= _copied_together(tensors, copy)
        return replace(self, **copies)

    def _tensors(self) -> dict[str, Tensor]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def __len__(self) -> int:
        return len(self.indices)


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


@dataclass
class Batch(BatchBase):
    """Images of one size: uint8 (N, 3, size, size) from a worker; after `finish` on the device, normalised in a float
    dtype, or still uint8 if that is the dtype of the loader. `images, labels = batch` works too."""

    images: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.images, self.labels))

    @property
    def data(self) -> Tensor:
        return self.images


@dataclass
class RaggedBatch(BatchBase):
    """Crops of different sizes, one after the other in one buffer, to be resized on the device.

    pixels: uint8 (num_bytes,); crop i is pixels[offsets[i]:] as (heights[i], widths[i], 3). heights, widths: int32
    (N,); offsets: int64 (N,); flips: bool (N,), True to mirror the crop horizontally. windows: float32 (N, 4), top,
    left, height and width of the part of the crop that becomes the image, in pixels of the crop.
    """

    pixels: Tensor
    heights: Tensor
    widths: Tensor
    offsets: Tensor
    flips: Tensor
    windows: Tensor

    @property
    def data(self) -> Tensor:
        return self.pixels


def joined(parts: Sequence[Batch | RaggedBatch]) -> Batch | RaggedBatch:
    """One batch from the parts of a step, in their order and on their device; a single part is returned unchanged."""
    first = parts[0]
    if len(parts) == 1:
        return first
    tensors: dict[str, Any] = {name: _joined([getattr(part, name) for part in parts]) for name in first._tensors()}
    if isinstance(first, RaggedBatch):
        starts = accumulate((len(part.data) for part in parts[:-1]), initial=0)
        moved = [part._tensors()["offsets"] + start for part, start in zip(parts, starts, strict=True)]
        tensors["offsets"] = torch.cat(moved)
    drawn = [part.augmentation for part in parts if part.augmentation is not None]
    return replace(
        first,
        stats=LoadStats.of_parts([part.stats for part in parts]),
        lease=None,
        augmentation=Augmentation.of_parts(drawn, [len(part) for part in parts]) if drawn else None,
        **tensors,
    )


def _joined(parts: list[Tensor]) -> Tensor:
    first, num_bytes = parts[0], sum(part.nbytes for part in parts)
    is_large = _takes_blocks(first, num_bytes, first.device)
    return torch.cat(parts, out=_device_bytes(num_bytes, first.device)) if is_large else torch.cat(parts)


def to_images(batch: Batch | RaggedBatch, format: ImageFormat) -> Batch:
    """The batch as images of this format, augmented as the worker drew, on the device of the batch.

    One kernel makes normalised images of crops, unless the augmentation needs pixels before normalising.
    """
    drawn = batch.augmentation
    layers = drawn.layers if drawn is not None else ()
    if isinstance(batch, RaggedBatch):
        ragged = (batch.pixels, batch.heights, batch.widths, batch.offsets, batch.flips, batch.windows)
        resized_format = replace(format, dtype=torch.uint8) if layers else format
        images = resize_ragged(*ragged, size=batch.key.image_size, format=resized_format)
        facts = (batch.labels, batch.indices, batch.valid, batch.key, batch.stats, None)
        batch = Batch(*facts, images, augmentation=drawn)
    if not batch.images.is_floating_point():
        pixels = augment(batch.images, layers) if layers else batch.images
        if format.dtype == torch.uint8:  # the worker needs the shared memory of a lease for later batches
            images = pixels if batch.lease is None else pixels.clone()
        else:
            images = normalize(pixels, format)
        batch = replace(batch, images=images)
    if drawn is not None and drawn.erased is not None:
        erase(batch.images, drawn.erased, format.mean)
    return batch


def resize_ragged(
    pixels: Tensor,
    heights: Tensor,
    widths: Tensor,
    offsets: Tensor,
    flips: Tensor,
    windows: Tensor,
    *,
    size: int,
    format: ImageFormat,
) -> Tensor:
    """Resize crops to images_NCHW (N, 3, size, size) in this format, channels_last. Tensors: see RaggedBatch.

    One Triton kernel on a GPU; torch, image by image, on a CPU. uint8 is rounded.
    """
    if pixels.device.type != "cuda":
        return resize_torch(pixels, heights, widths, offsets, flips, windows, size=size, format=format)
    from imagenet_opt.data.transforms.resize_kernel import resize_kernel  # Triton may be absent without CUDA

    return resize_kernel(pixels, heights, widths, offsets, flips, windows, size=size, format=format)


def images_of(batch: Any) -> Tensor | None:
    """The images of a batch of any loader: its first entry, or the entry or attribute `images`; None for no tensor."""
    found = batch if isinstance(batch, dict) else {"images": getattr(batch, "images", None)}
    images = batch[0] if isinstance(batch, list | tuple) and batch else found.get("images")
    return images if isinstance(images, Tensor) else None


def need_images(batch: Any, remedy: str) -> Tensor:
    """The images of a batch; `set_images` can replace them. Raises ConfigError with the remedy for other batches."""
    if isinstance(batch, tuple) or (images := images_of(batch)) is None:
        raise ConfigError(
            f"no images in a batch that is a {type(batch).__name__}; expected a list [images, labels], or a dict "
            f"or an object with `images` and `labels`; {remedy}"
        )
    return images


def set_images(batch: Any, images: Tensor, labels: Tensor | None = None) -> None:
    """Replace the images of a batch, and its labels if given."""
    parts = {"images": images} if labels is None else {"images": images, "labels": labels}
    for place, (name, tensor) in enumerate(parts.items()):
        if isinstance(batch, dict):
            batch[name] = tensor
        elif isinstance(batch, list):
            batch[place] = tensor
        else:
            setattr(batch, name, tensor)
