"""Turns a batch key into a batch: the work of a loader worker."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from imagenet_opt.data.batch import Batch, Making, RaggedBatch
from imagenet_opt.data.decode.decoder import Decoder, Opened
from imagenet_opt.data.decode.region_codec import Pixels, region_codec
from imagenet_opt.data.keys import BatchKey
from imagenet_opt.data.order import Draw, EvalOrder, TrainOrder
from imagenet_opt.data.randomness import key_of, uniform
from imagenet_opt.data.shared_buffers import Slots, Ticket
from imagenet_opt.data.storage.reader import Place, Reader
from imagenet_opt.data.storage.requests import Sample
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.data.transforms.crop import RANDOM_CROP_DRAWS, Crops, center_crops, random_crops
from imagenet_opt.data.transforms.resize import resize
from imagenet_opt.errors import BadSample

Sizes = NDArray[np.int64]
CropPlan = Callable[[Draw, Sizes, Sizes], tuple[Crops, NDArray[np.bool_]]]
"""(draw, image heights, image widths) -> crop boxes, and which images are flipped."""

_REPLACEMENTS = 20
"""Other samples tried in the place of a bad one."""


@dataclass(frozen=True, kw_only=True)
class BatchDataset(Dataset["Batch | RaggedBatch"]):
    """Maps a key to a whole batch, so that the order of samples is decided in one place.

    resize_here: return images of the key's size, uint8, instead of ragged crops that the device resizes. skip_bad:
    replace samples that cannot be opened by others, drawn from (seed, pass, index); otherwise raise BadSample.
    """

    reader: Reader
    decoder: Decoder
    labels: NDArray[np.int32]
    order: TrainOrder | EvalOrder
    crop_plan: CropPlan
    resize_here: bool
    skip_bad: bool
    seed: int
    slots: Slots

    def __getitem__(self, key: BatchKey) -> Batch | RaggedBatch:
        draw = self.order.draw(key.epoch, key.step)
        fetched = self.reader.read((key.epoch, key.step), draw.indices, self._following(key))
        began = time.perf_counter()
        self.slots.begin(key.epoch, key.step)
        num_images, given_up_before = len(draw.indices), self.decoder.num_given_up
        sheet = Images(self.slots, num_images, key.image_size) if self.resize_here else Sheet(self.slots, num_images)
        draw, skipped = self._fill(sheet, draw, fetched.samples)
        labels = torch.from_numpy(self.labels[draw.indices].astype(np.int64))
        indices = torch.from_numpy(draw.indices)
        valid = torch.arange(len(draw.indices)) < draw.num_valid
        if isinstance(self.order, EvalOrder):
            valid &= torch.from_numpy(draw.passes == 0)
        making = Making(
            read_seconds=fetched.wait_seconds,
            decode_seconds=time.perf_counter() - began,
            num_bytes=sum(len(sample) for sample in fetched.samples if isinstance(sample, bytes)),
            reads_in_flight=fetched.reads_in_flight,
            made_at=time.monotonic(),
            skipped=tuple(skipped),
            num_given_up=self.decoder.num_given_up - given_up_before,
            codec_error=region_codec().error,
        )
        self.slots.count()
        made = sheet.batch(labels, indices, valid, key, making)
        return made if get_worker_info() is None else made.share_memory()

    def _following(self, key: BatchKey) -> Iterator[tuple[Place, Indices]]:
        """Keys that this worker will probably receive next: every num_workers-th batch, then those of the next
        epoch."""
        info = get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        epoch, step = key.epoch, key.step + stride
        while True:
            if step >= self.order.num_batches:
                if isinstance(self.order, EvalOrder) or first >= self.order.num_batches:
                    return
                epoch, step = epoch + 1, first
            yield (epoch, step), self.order.draw(epoch, step).indices
            step += stride

    def _fill(self, sheet: "Images | Sheet", draw: Draw, samples: list[Sample]) -> tuple[Draw, list[tuple[int, str]]]:
        """Decode all samples into the sheet and replace bad ones. Returns the indices in the batch, and the skipped
        samples."""
        rows = np.arange(len(draw.indices))
        indices, passes = draw.indices.copy(), draw.passes.copy()
        skipped: list[tuple[int, str]] = []
        for attempt in range(1, _REPLACEMENTS + 2):
            bad = self._decode(sheet, rows, Draw(indices[rows], passes[rows], len(rows)), samples)
            if not bad:
                return Draw(indices, passes, draw.num_valid), skipped
            if not self.skip_bad or attempt > _REPLACEMENTS:
                raise next(iter(bad.values()))
            rows = np.array(list(bad))
            skipped += [(int(indices[row]), str(error)) for row, error in bad.items()]
            keys = [key_of(self.seed, int(passes[row]), int(indices[row]), attempt) for row in rows]
            indices[rows] = [key % len(self.labels) for key in keys]
            if isinstance(self.order, EvalOrder):
                passes[rows] = 1  # that is: not of this validation
            samples = self.reader.read_now(indices[rows])
        raise AssertionError("the last attempt returns or raises")

    def _decode(
        self, sheet: "Images | Sheet", rows: NDArray[np.int64], draw: Draw, samples: list[Sample]
    ) -> dict[int, BadSample]:
        """Decode samples into rows of the sheet; returns the errors by row."""
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
        part = Draw(draw.indices[places], draw.passes[places], len(places))
        heights = np.array([image.height for _, image in opened])
        widths = np.array([image.width for _, image in opened])
        crops, flips = self.crop_plan(part, heights, widths)
        sheet.expect(int(np.minimum(crops.heights * crops.widths, self.decoder.max_crop_pixels).sum()))
        boxes = zip(*(side.tolist() for side in crops), strict=True)
        for (place, image), box, flip in zip(opened, boxes, flips.tolist(), strict=True):
            row = int(rows[place])
            try:
                sheet.put(row, self.decoder.crop(image, box), flip)
            except BadSample as error:
                bad[row] = error
        return bad


class Images:
    """Rows of a batch as images of one size, resized in the worker."""

    def __init__(self, slots: Slots, num_images: int, size: int) -> None:
        self.size = size
        num_bytes = num_images * 3 * size * size
        buffer, self.ticket = slots.take(num_bytes)
        self.images = buffer[:num_bytes].view(num_images, 3, size, size)

    def expect(self, num_pixels: int) -> None:
        """Does nothing; the memory exists already."""

    def put(self, row: int, pixels: Pixels, flip: bool) -> None:
        self.images[row] = resize(torch.from_numpy(pixels).permute(2, 0, 1), self.size, flip)

    def batch(self, labels: Tensor, indices: Tensor, valid: Tensor, key: BatchKey, making: Making) -> Batch:
        return Batch(labels, indices, valid, key, making, self.ticket, self.images)


class Sheet:
    """Rows of a batch as crops of any size, one after the other."""

    def __init__(self, slots: Slots, num_images: int) -> None:
        self.slots = slots
        self.ticket: Ticket | None = None
        self.sizes = torch.zeros((2, num_images), dtype=torch.int32)
        self.offsets = torch.zeros(num_images, dtype=torch.int64)
        self.flips = torch.zeros(num_images, dtype=torch.bool)
        self.pixels = torch.empty(0, dtype=torch.uint8)
        self.num_bytes = 0

    def expect(self, num_pixels: int) -> None:
        """Reserve memory for this many more pixels."""
        larger, ticket = self.slots.take(self.num_bytes + 3 * num_pixels)
        larger[: self.num_bytes] = self.pixels[: self.num_bytes]
        self.slots.give_back(self.ticket)
        self.ticket = ticket
        self.pixels, self._numpy = larger, larger.numpy()

    def put(self, row: int, pixels: Pixels, flip: bool) -> None:
        height, width, _ = pixels.shape
        end = self.num_bytes + pixels.size
        self._numpy[self.num_bytes : end].reshape(pixels.shape)[:] = pixels
        self.sizes[0, row], self.sizes[1, row] = height, width
        self.offsets[row], self.flips[row] = self.num_bytes, flip
        self.num_bytes = end

    def batch(self, labels: Tensor, indices: Tensor, valid: Tensor, key: BatchKey, making: Making) -> RaggedBatch:
        heights, widths = self.sizes
        pixels, offsets, flips = self.pixels, self.offsets, self.flips
        return RaggedBatch(labels, indices, valid, key, making, self.ticket, pixels, heights, widths, offsets, flips)


def train_crops(*, seed: int, scale: tuple[float, float]) -> CropPlan:
    """Random crops and flips; each is a function of (seed, pass, sample index)."""

    def plan(draw: Draw, heights: Sizes, widths: Sizes) -> tuple[Crops, NDArray[np.bool_]]:
        draws = np.empty((len(heights), RANDOM_CROP_DRAWS + 1))
        for one_pass in np.unique(draw.passes):
            chosen = draw.passes == one_pass
            key = key_of(seed, int(one_pass))
            draws[chosen] = uniform(key, draw.indices[chosen], draws.shape[1])
        return random_crops(heights, widths, draws[:, :-1], scale=scale), draws[:, -1] < 0.5

    return plan


def eval_crops(*, crop_ratio: float) -> CropPlan:
    """Centred crops without flips."""

    def plan(draw: Draw, heights: Sizes, widths: Sizes) -> tuple[Crops, NDArray[np.bool_]]:
        return center_crops(heights, widths, crop_ratio=crop_ratio), np.zeros(len(heights), dtype=bool)

    return plan
