"""Turns a batch key into a batch: the work of a loader worker."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from imagenet_opt.data.batch import Batch, LoadStats, RaggedBatch
from imagenet_opt.data.decode.decoder import Decoder, Opened
from imagenet_opt.data.decode.region_codec import Pixels, region_codec
from imagenet_opt.data.keys import BatchKey
from imagenet_opt.data.order import EvalOrder, SampleIds, TrainOrder, part_of, parts_of
from imagenet_opt.data.randomness import key_of, sample_uniform
from imagenet_opt.data.shared_buffers import Lease, SharedBufferPool
from imagenet_opt.data.storage.read_ahead import Place, ReadAhead
from imagenet_opt.data.storage.read_pool import Sample
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.data.transforms.augment import Augmenter
from imagenet_opt.data.transforms.crop import RANDOM_CROP_DRAWS, Crops, center_crops, random_crops
from imagenet_opt.data.transforms.resize import resize
from imagenet_opt.errors import BadSample

Sizes = NDArray[np.int64]
CropPlan = Callable[[SampleIds, Sizes, Sizes], tuple[Crops, NDArray[np.bool_]]]
"""(draw, image heights, image widths) -> crop boxes, and which images are flipped."""

_REPLACEMENTS = 20
"""Other samples tried in the place of a bad one."""


@dataclass(frozen=True, kw_only=True)
class BatchDataset(Dataset["Batch | RaggedBatch"]):
    """Maps a key to a whole batch, or to a part of a large one, so that the order of samples is decided in one place.

    resize_here: return images of the key's size, uint8, instead of ragged crops that the device resizes. skip_bad:
    replace samples that cannot be opened by others, drawn from (seed, pass, index); otherwise raise BadSample.
    augmenter: None leaves images as they are.
    """

    reader: ReadAhead
    decoder: Decoder
    labels: NDArray[np.int32]
    order: TrainOrder | EvalOrder
    crop_plan: CropPlan
    augmenter: Augmenter | None
    interpolation: str
    resize_here: bool
    skip_bad: bool
    seed: int
    buffers: SharedBufferPool

    @property
    def num_parts(self) -> int:
        """Number of parts of each batch."""
        return parts_of(self.order.batch_size)

    def __getitem__(self, key: BatchKey) -> Batch | RaggedBatch:
        item = key.step * self.num_parts + key.part
        draw = self._draw(key.epoch, item)
        fetched = self.reader.read((key.epoch, item), draw.indices, self._following(key.epoch, item))
        began = time.perf_counter()
        self.buffers.new_batch(key.epoch, item)
        num_images, given_up_before = len(draw.indices), self.decoder.num_given_up
        num_bytes = sum(len(sample) for sample in fetched.samples if isinstance(sample, bytes))
        builder = (
            ImageBuilder(self.buffers, num_images, key.image_size, self.interpolation)
            if self.resize_here
            else RaggedBuilder(self.buffers, num_images)
        )
        draw, skipped = self._fill(builder, draw, fetched.samples)
        labels = torch.from_numpy(self.labels[draw.indices].astype(np.int64))
        indices = torch.from_numpy(draw.indices)
        valid = torch.arange(len(draw.indices)) < draw.num_valid
        if isinstance(self.order, EvalOrder):
            valid &= torch.from_numpy(draw.pass_ids == 0)
        stats = LoadStats(
            read_seconds=fetched.wait_seconds,
            decode_seconds=time.perf_counter() - began,
            num_bytes=num_bytes,
            reads_in_flight=fetched.reads_in_flight,
            made_at=time.monotonic(),
            skipped=tuple(skipped),
            num_given_up=self.decoder.num_given_up - given_up_before,
            codec_error=region_codec().error,
        )
        self.buffers.count()
        made = builder.batch(labels, indices, valid, key, stats)
        if self.augmenter is not None:
            drawn = self.augmenter.draw(draw.indices, draw.pass_ids, key.image_size)
            made = replace(made, augmentation=drawn)
        return made if get_worker_info() is None else made.share_memory()

    def _draw(self, epoch: int, item: int) -> SampleIds:
        """The samples of a part. item: number of the part within the epoch."""
        step, part = divmod(item, self.num_parts)
        block_size = self.order.block_size if isinstance(self.order, TrainOrder) else 1
        return part_of(self.order.sample_ids(epoch, step), part, self.num_parts, block_size)

    def _following(self, epoch: int, item: int) -> Iterator[tuple[Place, Indices]]:
        """Parts that this worker will probably make next: every num_workers-th, then those of the next epoch."""
        info = get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        num_items = self.order.num_batches * self.num_parts
        item += stride
        while True:
            if item >= num_items:
                if isinstance(self.order, EvalOrder) or first >= num_items:
                    return
                epoch, item = epoch + 1, first
            yield (epoch, item), self._draw(epoch, item).indices
            item += stride

    def _fill(
        self, builder: "ImageBuilder | RaggedBuilder", draw: SampleIds, samples: list[Sample]
    ) -> tuple[SampleIds, list[tuple[int, str]]]:
        """Decode all samples into the builder and replace bad ones. Returns the indices in the batch, and the skipped
        samples."""
        rows = np.arange(len(draw.indices))
        indices, pass_ids = draw.indices.copy(), draw.pass_ids.copy()
        skipped: list[tuple[int, str]] = []
        for attempt in range(1, _REPLACEMENTS + 2):
            bad = self._decode(builder, rows, SampleIds(indices[rows], pass_ids[rows], len(rows)), samples)
            if not bad:
                return SampleIds(indices, pass_ids, draw.num_valid), skipped
            if not self.skip_bad or attempt > _REPLACEMENTS:
                raise next(iter(bad.values()))
            rows = np.array(list(bad))
            skipped += [(int(indices[row]), str(error)) for row, error in bad.items()]
            keys = [key_of(self.seed, int(pass_ids[row]), int(indices[row]), attempt) for row in rows]
            indices[rows] = [key % len(self.labels) for key in keys]
            if isinstance(self.order, EvalOrder):
                pass_ids[rows] = 1  # that is: not of this validation
            samples = self.reader.read_unplanned(indices[rows])
        raise AssertionError("the last attempt returns or raises")

    def _decode(
        self, builder: "ImageBuilder | RaggedBuilder", rows: NDArray[np.int64], draw: SampleIds, samples: list[Sample]
    ) -> dict[int, BadSample]:
        """Decode samples into rows of the builder; returns the errors by row. The bytes of each image are dropped from
        `samples` once it is decoded."""
        bad: dict[int, BadSample] = {}
        opened: list[tuple[int, Opened]] = []
        for place, (row, index, sample) in enumerate(zip(rows.tolist(), draw.indices.tolist(), samples, strict=True)):
            try:
                if isinstance(sample, BadSample):
                    raise sample
                opened.append((place, self.decoder.open(sample, self.reader.store.name(index))))
            except BadSample as error:
                bad[row] = error
        if not opened:
            return bad
        places = np.array([place for place, _ in opened])
        part = SampleIds(draw.indices[places], draw.pass_ids[places], len(places))
        heights = np.array([image.height for _, image in opened])
        widths = np.array([image.width for _, image in opened])
        crops, flips = self.crop_plan(part, heights, widths)
        builder.reserve(int(np.minimum(crops.heights * crops.widths, self.decoder.max_crop_pixels).sum()))
        boxes = zip(*(side.tolist() for side in crops), strict=True)
        opened.reverse()
        for box, flip in zip(boxes, flips.tolist(), strict=True):
            place, image = opened.pop()
            samples[place] = b""
            row = int(rows[place])
            try:
                builder.write(row, self.decoder.crop(image, box), flip)
            except BadSample as error:
                bad[row] = error
        return bad


class ImageBuilder:
    """Rows of a batch as images of one size, resized in the worker."""

    def __init__(self, buffers: SharedBufferPool, num_images: int, size: int, interpolation: str) -> None:
        self.size, self.interpolation = size, interpolation
        num_bytes = num_images * 3 * size * size
        buffer, self.lease = buffers.acquire(num_bytes)
        self.images = buffer[:num_bytes].view(num_images, 3, size, size)

    def reserve(self, num_pixels: int) -> None:
        """Does nothing; the memory exists already."""

    def write(self, row: int, pixels: Pixels, flip: bool) -> None:
        crop_CHW = torch.from_numpy(pixels).permute(2, 0, 1)
        self.images[row] = resize(crop_CHW, self.size, flip, self.interpolation)

    def batch(self, labels: Tensor, indices: Tensor, valid: Tensor, key: BatchKey, stats: LoadStats) -> Batch:
        return Batch(labels, indices, valid, key, stats, self.lease, self.images)


class RaggedBuilder:
    """Rows of a batch as crops of any size, one after the other."""

    def __init__(self, buffers: SharedBufferPool, num_images: int) -> None:
        self.buffers = buffers
        self.lease: Lease | None = None
        self.sizes = torch.zeros((2, num_images), dtype=torch.int32)
        self.offsets = torch.zeros(num_images, dtype=torch.int64)
        self.flips = torch.zeros(num_images, dtype=torch.bool)
        self.pixels = torch.empty(0, dtype=torch.uint8)
        self.num_bytes = 0

    def reserve(self, num_pixels: int) -> None:
        """Reserve memory for this many more pixels."""
        larger, lease = self.buffers.acquire(self.num_bytes + 3 * num_pixels)
        larger[: self.num_bytes] = self.pixels[: self.num_bytes]
        self.buffers.release(self.lease)
        self.lease = lease
        self.pixels, self._numpy = larger, larger.numpy()

    def write(self, row: int, pixels: Pixels, flip: bool) -> None:
        height, width, _ = pixels.shape
        end = self.num_bytes + pixels.size
        self._numpy[self.num_bytes : end].reshape(pixels.shape)[:] = pixels
        self.sizes[0, row], self.sizes[1, row] = height, width
        self.offsets[row], self.flips[row] = self.num_bytes, flip
        self.num_bytes = end

    def batch(self, labels: Tensor, indices: Tensor, valid: Tensor, key: BatchKey, stats: LoadStats) -> RaggedBatch:
        heights, widths = self.sizes
        pixels, offsets, flips = self.pixels, self.offsets, self.flips
        return RaggedBatch(labels, indices, valid, key, stats, self.lease, pixels, heights, widths, offsets, flips)


def train_crops(*, seed: int, scale: tuple[float, float]) -> CropPlan:
    """Random crops and flips; each is a function of (seed, pass, sample index)."""

    def plan(draw: SampleIds, heights: Sizes, widths: Sizes) -> tuple[Crops, NDArray[np.bool_]]:
        draws = sample_uniform(seed, draw.pass_ids, draw.indices, RANDOM_CROP_DRAWS + 1)
        return random_crops(heights, widths, draws[:, :-1], scale=scale), draws[:, -1] < 0.5

    return plan


def eval_crops(*, crop_ratio: float) -> CropPlan:
    """Centred crops without flips."""

    def plan(draw: SampleIds, heights: Sizes, widths: Sizes) -> tuple[Crops, NDArray[np.bool_]]:
        return center_crops(heights, widths, crop_ratio=crop_ratio), np.zeros(len(heights), dtype=bool)

    return plan
