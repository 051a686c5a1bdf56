"""A batch on its way from a worker to the network."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imagenet_opt.data.batch_keys import BatchKey
from imagenet_opt.data.batch_memory import Lease, SharedBufferPool, TensorFields, concatenated, rounded_bytes
from imagenet_opt.data.decode.nvimagecodec import Pixels
from imagenet_opt.data.transforms.augment_ops import Augmentation, augment, erase
from imagenet_opt.data.transforms.resize import (
    ImageFormat,
    RaggedCrops,
    Size,
    filter_of,
    normalize,
    resize,
    resize_torch,
)
from imagenet_opt.errors import ConfigError


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
class BatchBase(TensorFields):
    """Fields of every batch.

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

    def only(self, rows: Tensor) -> Self:
        """These rows of the batch. rows: bool (N,)."""
        if bool(rows.all()):
            return self
        chosen: dict[str, Any] = {
            name: value[rows] for name, value in self.tensors_by_name().items() if name != "pixels"
        }
        return replace(self, **chosen)

    def __len__(self) -> int:
        return len(self.indices)


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
class RaggedBatch(RaggedCrops, BatchBase):
    """Crops of different sizes, to be resized on the device."""

    @property
    def data(self) -> Tensor:
        return self.pixels


AnyBatch = Batch | RaggedBatch
"""A batch from a worker, or a part of a large batch."""


class RaggedBuilder:
    """Builds a batch of crops of any size, one after the other in one buffer, which comes from `buffers` or, without
    them, is ordinary memory."""

    def __init__(self, buffers: SharedBufferPool | None, num_images: int, size: int) -> None:
        self.buffers, self.size = buffers, size
        self.lease: Lease | None = None
        # numpy, because setting a number of a tensor takes 3 microseconds
        self.sizes = np.zeros((2, num_images), dtype=np.int32)
        self.offsets = np.zeros(num_images, dtype=np.int64)
        self.flips = np.zeros(num_images, dtype=np.bool_)
        self.windows = np.zeros((num_images, 4), dtype=np.float32)
        self.pixels = torch.empty(0, dtype=torch.uint8)
        self.num_crops = self.num_bytes = 0

    def reserve(self, num_crops: int, num_pixels: int) -> None:
        """Reserve memory for further crops. If the buffer is too small, acquire a buffer for the whole batch, with
        crops of the mean size so far."""
        needed = self.num_bytes + 3 * num_pixels
        self.num_crops += num_crops
        if needed <= len(self.pixels):
            return
        expected = int(needed * max(1.0, len(self.flips) / self.num_crops))
        if self.buffers is None:
            larger, lease = torch.empty(rounded_bytes(expected), dtype=torch.uint8), None
        else:
            larger, lease = self.buffers.acquire(expected)
        larger[: self.num_bytes] = self.pixels[: self.num_bytes]
        if self.buffers is not None:
            self.buffers.release(self.lease)
        self.lease = lease
        self.pixels, self._numpy = larger, larger.numpy()

    def write(self, row: int, pixels: Pixels, flip: bool, window: NDArray[np.float64]) -> None:
        height, width, _ = pixels.shape
        end = self.num_bytes + pixels.size
        self._numpy[self.num_bytes : end].reshape(pixels.shape)[:] = pixels
        self.sizes[0, row], self.sizes[1, row] = height, width
        self.offsets[row], self.flips[row], self.windows[row] = self.num_bytes, flip, window
        self.num_bytes = end

    def crops(self) -> RaggedCrops:
        facts = map(torch.from_numpy, (*self.sizes, self.offsets, self.flips, self.windows))
        return RaggedCrops(self.pixels[: rounded_bytes(self.num_bytes)], *facts)

    def batch(self, labels: Tensor, indices: Tensor, valid: Tensor, key: BatchKey, stats: LoadStats) -> RaggedBatch:
        return RaggedBatch(labels, indices, valid, key, stats, self.lease, **vars(self.crops()))


class ImageBuilder:
    """Builds a batch of images of one size, which the worker resizes."""

    def __init__(self, buffers: SharedBufferPool, num_images: int, size: int, interpolation: str) -> None:
        self.size, self.interpolation = size, interpolation
        num_bytes = num_images * 3 * size * size
        buffer, self.lease = buffers.acquire(num_bytes)
        self.images = buffer[:num_bytes].view(num_images, 3, size, size)

    def reserve(self, num_crops: int, num_pixels: int) -> None:
        """Does nothing, because the memory exists already."""

    def write(self, row: int, pixels: Pixels, flip: bool, window: NDArray[np.float64]) -> None:
        crop_CHW = torch.from_numpy(pixels).permute(2, 0, 1)
        self.images[row] = resize(crop_CHW, self.size, flip, self.interpolation, window.tolist())

    def batch(self, labels: Tensor, indices: Tensor, valid: Tensor, key: BatchKey, stats: LoadStats) -> Batch:
        return Batch(labels, indices, valid, key, stats, self.lease, self.images)


def joined(parts: Sequence[AnyBatch]) -> AnyBatch:
    """One batch from the parts of a step, in their order and on their device; a single part is returned unchanged."""
    first = parts[0]
    if len(parts) == 1:
        return first
    tensors: dict[str, Any] = {
        name: concatenated([getattr(part, name) for part in parts]) for name in first.tensors_by_name()
    }
    if isinstance(first, RaggedBatch):
        starts = accumulate((len(part.data) for part in parts[:-1]), initial=0)
        moved = [part.tensors_by_name()["offsets"] + start for part, start in zip(parts, starts, strict=True)]
        tensors["offsets"] = torch.cat(moved)
    drawn = [part.augmentation for part in parts if part.augmentation is not None]
    return replace(
        first,
        stats=LoadStats.of_parts([part.stats for part in parts]),
        lease=None,
        augmentation=Augmentation.of_parts(drawn, [len(part) for part in parts]) if drawn else None,
        **tensors,
    )


def to_images(batch: AnyBatch, format: ImageFormat) -> Batch:
    """The batch as images of this format, augmented as the worker drew, on the device of the batch.

    One kernel makes normalised images of crops, unless the augmentation needs pixels before normalising.
    """
    drawn = batch.augmentation
    layers = drawn.layers if drawn is not None else ()
    if isinstance(batch, RaggedBatch):
        chosen = filter_of(format.interpolation, batch.key[:2])
        resized_format = replace(format, dtype=torch.uint8 if layers else format.dtype, interpolation=chosen)
        images = resize_ragged(batch, size=batch.key.image_size, format=resized_format)
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


def resize_ragged(crops: RaggedCrops, *, size: Size, format: ImageFormat) -> Tensor:
    """Resize crops to images_NCHW of this size and format, channels_last.

    One Triton kernel on a GPU; torch, image by image, on a CPU. uint8 is rounded.
    """
    if crops.pixels.device.type != "cuda":
        return resize_torch(crops, size=size, format=format)
    from imagenet_opt.data.transforms.resize_kernel import resize_kernel  # Triton may be absent without CUDA

    return resize_kernel(crops, size=size, format=format)


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
