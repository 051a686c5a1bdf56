"""Turns a batch key into a batch: the work of a loader worker."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info

from imagenet_opt.data.batch import AnyBatch, ImageBuilder, LoadStats, RaggedBuilder
from imagenet_opt.data.batch_keys import BatchKey
from imagenet_opt.data.batch_memory import SharedBufferPool
from imagenet_opt.data.decode.decoder import Decoder, OpenedImage
from imagenet_opt.data.order import PART_IMAGES, EvalOrder, SampleIds, TrainOrder, part_of
from imagenet_opt.data.randomness import key_of
from imagenet_opt.data.storage.read_ahead import Portion, ReadAhead, ReadResult
from imagenet_opt.data.storage.read_pool import Sample
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.data.transforms.augment import Augmenter
from imagenet_opt.data.transforms.crop import CropPlan
from imagenet_opt.data.transforms.resize import filter_of
from imagenet_opt.errors import BadSample
from imagenet_opt.measure.telemetry.thread_time import thread_time

_REPLACEMENTS = 20
"""Number of samples that are tried as the replacement of a bad sample."""
_PORTION = 32
"""Most samples that a worker reads and decodes at a time, so that it holds few files. Our choice: smaller
portions cost time, and portions twice as large need 4 MB more per worker."""


@dataclass(frozen=True, kw_only=True)
class BatchDataset(Dataset[AnyBatch]):
    """Maps a key to a whole batch, or to a part of a large batch.

    augmenter: None for no augmentation. resize_here: return images of the key's size, uint8, instead of ragged crops
    that the device resizes. skip_bad: replace each sample that cannot be opened by a sample that (seed, pass, index)
    determine; otherwise raise BadSample. pad: False to leave out the rows of a batch that are not valid. labels: int32
    (num_samples,), or the targets of a loader: of any shape for each sample, float or whole numbers.
    """

    reader: ReadAhead
    decoder: Decoder
    labels: NDArray[Any]
    order: TrainOrder | EvalOrder
    crop_plan: CropPlan
    augmenter: Augmenter | None
    interpolation: str
    resize_here: bool
    skip_bad: bool
    seed: int
    buffers: SharedBufferPool
    pad: bool = True

    @property
    def num_parts(self) -> int:
        """Number of parts of each batch but the first."""
        return -(-self.order.batch_size // PART_IMAGES)

    def first_parts(self, num_workers: int) -> int:
        """Number of parts of the first batch: one for each worker, so that all workers start with this batch."""
        most = self.order.batch_size // self.order.block_size
        return self.num_parts if self.num_parts > 1 else max(1, min(num_workers, most))

    def __getitem__(self, key: BatchKey) -> AnyBatch:
        began = thread_time()
        self.buffers.new_batch(key.epoch, key.step, key.part)
        draw = self._draw(key)
        builder = (
            ImageBuilder(self.buffers, len(draw.indices), key.image_size, filter_of(self.interpolation, key[:2]))
            if self.resize_here
            else RaggedBuilder(self.buffers, len(draw.indices), key.image_size)
        )
        draw, skipped, reads = self._fill(builder, key, draw)
        valid = torch.arange(len(draw.indices)) < draw.num_valid
        if isinstance(self.order, EvalOrder):
            valid &= torch.from_numpy(draw.pass_ids == 0)
        spent, reading = thread_time().since(began), self.reader.take_waits()
        cpu_wait_seconds = spent.queued + reading.queued
        stats = LoadStats(
            read_seconds=reading.waiting,
            decode_seconds=max(0.0, spent.wall - reading.waiting - cpu_wait_seconds),
            cpu_wait_seconds=cpu_wait_seconds,
            num_bytes=sum(read.num_bytes for read in reads),
            reads_in_flight=reads[-1].reads_in_flight,
            made_at=time.monotonic(),
            skipped=tuple(skipped),
            events=self.reader.take_events(),
            notes=tuple(self.decoder.take_notes()),
        )
        labels = self.labels[draw.indices]
        labels = labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64)
        made = builder.batch(torch.from_numpy(labels), torch.from_numpy(draw.indices), valid, key, stats)
        if not self.pad:
            made = made.only(valid)
        self.buffers.count(len(made))
        if self.augmenter is not None:
            made.augmentation = self.augmenter.draw(draw.indices, draw.pass_ids, key.image_size)
        return made if get_worker_info() is None else made.share_memory()

    def _draw(self, key: BatchKey) -> SampleIds:
        return part_of(self.order.sample_ids(key.epoch, key.step), key.part, key.num_parts, self.order.block_size)

    def _portions(self, key: BatchKey) -> Iterator[tuple[Portion, Indices]]:
        """Portions that this worker will read: of `key`, then of the keys that it will probably get next, which are
        every num_workers-th key of this epoch and of the next."""
        info = get_worker_info()
        number, num_workers = (info.id, info.num_workers) if info else (0, 1)
        while True:
            while key.step < self.order.num_batches:
                draw = self._draw(key)
                num_portions = num_portions_of(len(draw.indices))
                for i in range(num_portions):
                    yield (*key, i), part_of(draw, i, num_portions, self.order.block_size).indices
                key = key.after(num_workers, self.num_parts)
            first = BatchKey(key.epoch + 1, 0, key.image_size, 0, self.first_parts(num_workers))
            key = first.after(number, self.num_parts)
            if isinstance(self.order, EvalOrder) or key.step >= self.order.num_batches:
                return

    def _fill(
        self, builder: ImageBuilder | RaggedBuilder, key: BatchKey, draw: SampleIds
    ) -> tuple[SampleIds, list[tuple[int, str]], list[ReadResult]]:
        """Read and decode the samples of a key into the builder, portion by portion, and replace bad samples. Returns
        the samples in the batch, the skipped samples, and the reads without their bytes."""
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
        self,
        builder: ImageBuilder | RaggedBuilder,
        rows: NDArray[np.int64],
        draw: SampleIds,
        samples: list[Sample | None],
    ) -> list[tuple[int, str]]:
        """Decode samples into rows of the builder. Replaces bad samples, also in `draw`, and returns them."""
        skipped: list[tuple[int, str]] = []
        num_tries = Counter[int]()
        while undone := self._decode(builder, rows, draw, samples):
            for row, error in undone.items():
                if error is None:
                    continue
                num_tries[row] += 1
                if not self.skip_bad or num_tries[row] > _REPLACEMENTS:
                    raise error
                bad = int(draw.indices[row])
                skipped.append((bad, str(error)))
                key = key_of(self.seed, int(draw.pass_ids[row]), bad, num_tries[row])
                draw.indices[row] = key % len(self.labels)
                if isinstance(self.order, EvalOrder):
                    draw.pass_ids[row] = 1  # marks samples that do not count in this validation
            rows = np.array(list(undone))
            samples = self.reader.read_unplanned(draw.indices[rows])
        return skipped

    def _decode(
        self,
        builder: ImageBuilder | RaggedBuilder,
        rows: NDArray[np.int64],
        draw: SampleIds,
        samples: list[Sample | None],
    ) -> dict[int, BadSample | None]:
        """Decode samples into rows of the builder. Returns the other rows with their errors, None for a sample that was
        not read yet. Drops the bytes of each image from `samples` after decoding."""
        bad: dict[int, BadSample | None] = {}
        opened: list[tuple[int, OpenedImage]] = []
        indices = draw.indices[rows].tolist()
        for place, (row, index, sample) in enumerate(zip(rows.tolist(), indices, samples, strict=True)):
            if not isinstance(sample, bytes):
                bad[row] = sample
                continue
            try:
                opened.append((place, self.decoder.open(sample, partial(self.reader.store.name, index))))
            except BadSample as error:
                bad[row] = error
        if not opened:
            return bad
        chosen = rows[[place for place, _ in opened]]
        heights = np.array([image.height for _, image in opened])
        widths = np.array([image.width for _, image in opened])
        part = SampleIds(draw.indices[chosen], draw.pass_ids[chosen], len(chosen))
        crops, flips = self.crop_plan(part, heights, widths, builder.size)
        builder.reserve(len(chosen), int(np.minimum(crops.heights * crops.widths, self.decoder.max_crop_pixels).sum()))
        boxes = zip(*(side.tolist() for side in crops[:4]), strict=True)
        opened.reverse()
        for box, window, flip in zip(boxes, crops.windows, flips.tolist(), strict=True):
            place, image = opened.pop()
            samples[place] = b""
            row = int(rows[place])
            try:
                pixels = self.decoder.crop(image, box)
                height, width, _ = pixels.shape  # of a large crop fewer than in its box
                in_pixels = window * (height, width, height, width) / (*box[2:], *box[2:])
                builder.write(row, pixels, flip, in_pixels)
            except BadSample as error:
                bad[row] = error
        return bad


def num_portions_of(num_samples: int) -> int:
    """Number of portions in which a worker reads and decodes samples."""
    return -(-num_samples // _PORTION)
