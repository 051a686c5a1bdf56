"""Turns a batch key into a batch: the work of a loader worker."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

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
from imagenet_opt.data.shared_buffers import Lease, SharedBufferPool, rounded_bytes
from imagenet_opt.data.storage.read_ahead import Place, ReadAhead, ReadResult
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
_PORTION = 32
"""Samples that a worker reads and decodes at a time at most, so that it holds the files of few samples. Our choice:
half as many cost time for each portion, twice as many need 4 MB more per worker."""


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
        """Number of parts of each batch but the first."""
        return parts_of(self.order.batch_size)

    def first_parts(self, num_workers: int) -> int:
        """Number of parts of the first batch: as many as workers, so that all of them begin with it."""
        most = self.order.batch_size // self._block_size
        return self.num_parts if self.num_parts > 1 else max(1, min(num_workers, most))

    def __getitem__(self, key: BatchKey) -> Batch | RaggedBatch:
        began = time.perf_counter()
        draw, given_up_before = self._draw(key), self.decoder.num_given_up
        self.buffers.new_batch(key.epoch, key.step, key.part)
        builder = (
            ImageBuilder(self.buffers, len(draw.indices), key.image_size, self.interpolation)
            if self.resize_here
            else RaggedBuilder(self.buffers, len(draw.indices))
        )
        draw, skipped, reads = self._fill(builder, key, draw)
        labels = torch.from_numpy(self.labels[draw.indices].astype(np.int64))
        indices = torch.from_numpy(draw.indices)
        valid = torch.arange(len(draw.indices)) < draw.num_valid
        if isinstance(self.order, EvalOrder):
            valid &= torch.from_numpy(draw.pass_ids == 0)
        read_seconds = sum(read.wait_seconds for read in reads)
        stats = LoadStats(
            read_seconds=read_seconds,
            decode_seconds=time.perf_counter() - began - read_seconds,
            num_bytes=sum(read.num_bytes for read in reads),
            reads_in_flight=reads[-1].reads_in_flight,
            made_at=time.monotonic(),
            skipped=tuple(skipped),
            num_given_up=self.decoder.num_given_up - given_up_before,
            codec_error=region_codec().error,
        )
        self.buffers.count(len(draw.indices))
        made = builder.batch(labels, indices, valid, key, stats)
        if self.augmenter is not None:
            drawn = self.augmenter.draw(draw.indices, draw.pass_ids, key.image_size)
            made = replace(made, augmentation=drawn)
        return made if get_worker_info() is None else made.share_memory()

    @property
    def _block_size(self) -> int:
        return self.order.block_size if isinstance(self.order, TrainOrder) else 1

    def _draw(self, key: BatchKey) -> SampleIds:
        return part_of(self.order.sample_ids(key.epoch, key.step), key.part, key.num_parts, self._block_size)

    def _portions(self, key: BatchKey) -> Iterator[tuple[Place, Indices]]:
        """What this worker reads from `key` on: portions of this key, then of the keys that it will probably get next,
        which are every num_workers-th, and those of the next epoch."""
        info = get_worker_info()
        number, num_workers = (info.id, info.num_workers) if info else (0, 1)
        while True:
            while key.step < self.order.num_batches:
                draw = self._draw(key)
                num_portions = num_portions_of(len(draw.indices))
                for i in range(num_portions):
                    yield (*key, i), part_of(draw, i, num_portions, self._block_size).indices
                key = key.after(num_workers, self.num_parts)
            first = BatchKey(key.epoch + 1, 0, key.image_size, 0, self.first_parts(num_workers))
            key = first.after(number, self.num_parts)
            if isinstance(self.order, EvalOrder) or key.step >= self.order.num_batches:
                return

    def _fill(
        self, builder: "ImageBuilder | RaggedBuilder", key: BatchKey, draw: SampleIds
    ) -> tuple[SampleIds, list[tuple[int, str]], list[ReadResult]]:
        """Read and decode the samples of a key into the builder, a portion at a time, and replace bad ones. Returns the
        samples in the batch, the skipped ones, and the reads without their samples."""
        draw = SampleIds(draw.indices.copy(), draw.pass_ids.copy(), draw.num_valid)
        skipped: list[tuple[int, str]] = []
        reads: list[ReadResult] = []
        start, num_portions = 0, num_portions_of(len(draw.indices))
        for number, (place, indices) in enumerate(islice(self._portions(key), num_portions), start=1):
            read = self.reader.read(place, indices, islice(self._portions(key), number, None))
            rows = np.arange(start, start := start + len(indices))
            skipped += self._fill_rows(builder, rows, draw, read.samples)
            reads.append(read._replace(samples=[]))
        return draw, skipped, reads

    def _fill_rows(
        self, builder: "ImageBuilder | RaggedBuilder", rows: NDArray[np.int64], draw: SampleIds, samples: list[Sample]
    ) -> list[tuple[int, str]]:
        """Decode samples into rows of the builder and replace bad ones, also in `draw`. Returns the skipped samples."""
        skipped: list[tuple[int, str]] = []
        for attempt in range(1, _REPLACEMENTS + 2):
            chosen = SampleIds(draw.indices[rows], draw.pass_ids[rows], len(rows))
            bad = self._decode(builder, rows, chosen, samples)
            if not bad:
                return skipped
            if not self.skip_bad or attempt > _REPLACEMENTS:
                raise next(iter(bad.values()))
            rows = np.array(list(bad))
            skipped += [(int(draw.indices[row]), str(error)) for row, error in bad.items()]
            keys = [key_of(self.seed, int(draw.pass_ids[row]), int(draw.indices[row]), attempt) for row in rows]
            draw.indices[rows] = [key % len(self.labels) for key in keys]
            if isinstance(self.order, EvalOrder):
                draw.pass_ids[rows] = 1  # that is: not of this validation
            samples = self.reader.read_unplanned(draw.indices[rows])
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
        builder.reserve(len(places), int(np.minimum(crops.heights * crops.widths, self.decoder.max_crop_pixels).sum()))
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

    def reserve(self, num_crops: int, num_pixels: int) -> None:
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
        self.num_crops = self.num_bytes = 0

    def reserve(self, num_crops: int, num_pixels: int) -> None:
        """Reserve memory for these crops; if there is too little, for the whole batch with crops of this mean size."""
        needed = self.num_bytes + 3 * num_pixels
        self.num_crops += num_crops
        if needed <= len(self.pixels):
            return
        expected = needed * max(1.0, len(self.flips) / self.num_crops)
        larger, lease = self.buffers.acquire(int(expected))
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
        pixels, offsets, flips = self.pixels[: rounded_bytes(self.num_bytes)], self.offsets, self.flips
        return RaggedBatch(labels, indices, valid, key, stats, self.lease, pixels, heights, widths, offsets, flips)


def num_portions_of(num_samples: int) -> int:
    """Number of portions in which a worker reads and decodes this many samples."""
    return -(-num_samples // _PORTION)


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
