"""Decides the samples of each batch: a pure function of (seed, epoch, step, rank)."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.randomness import key_of
from imagenet_opt.errors import BatchTooLarge, CheckpointMismatch, ConfigError

_MOST_BLOCK = 16
LEAST_BLOCK = 8
PART_IMAGES = 512
"""Workers hand over a larger batch in parts of about this size, so that the memory for workers x prefetched parts stays
small. Our choice: 512 crops of ImageNet take about 150 MB."""
GLOBAL_BATCH = "images of a global batch"
_REPEATED = "data.repeated_augmentation"
_LABELS = "checksum of their labels in order"
WEIGHTS = "checksum of their weights"
ROWS = "checksum of the chosen indices"
_CLASSES = "checksum of their class names"
STEPS = "steps of an epoch"
"""Facts of an order, as checkpoints name them."""


class SampleIds(NamedTuple):
    """Samples of one rank in one batch: int64 (batch_size,) each, and the number of samples before the padding.

    pass_ids: passes over the data set before each sample; with whole epochs, the epoch. Each repetition of an image has
    another pass_id.
    """

    indices: NDArray[np.int64]
    pass_ids: NDArray[np.int64]
    num_valid: int


def part_of(draw: SampleIds, part: int, num_parts: int, block_size: int = 1) -> SampleIds:
    """One of `num_parts` nearly equal parts of a batch, in whole blocks."""
    num_blocks = len(draw.indices) // block_size
    start, stop = (i * num_blocks // num_parts * block_size for i in (part, part + 1))
    num_valid = min(max(0, draw.num_valid - start), stop - start)
    return SampleIds(draw.indices[start:stop], draw.pass_ids[start:stop], num_valid)


class Shuffle(NamedTuple):
    """Order of one pass: block b contains the samples from shift + block_size * blocks[b] on, modulo num_samples.
    copies: number of earlier copies of each sample in this pass; None if each comes once."""

    one_pass: int
    blocks: NDArray[np.int32]
    shift: int
    copies: NDArray[np.int32] | None = None


@dataclass(frozen=True, kw_only=True)
class TrainOrder:
    """A new shuffle for each pass over the data; the incomplete last global batch of an epoch is dropped.

    weights: float64 (num_samples,), above 0: each pass draws num_samples samples with replacement, each with a chance
    in proportion to its weight, instead of a shuffle. Each copy of a sample in a pass has another pass_id.

    With `samples_per_epoch`, passes are concatenated and cut into epochs of this many samples, rounded down to whole
    batches, so that no sample comes twice before all samples came once. Rank r takes the r-th part of each global
    batch. block_size: neighbours in the index that always come together in one batch, so that the storage can deliver
    them in one request; each pass draws new block boundaries. has_fixed_blocks: the samples are in whole blocks
    already, whose boundaries stay. Raises BatchTooLarge if an epoch has less than one batch.

    repetitions: copies of each image in an epoch, for repeated augmentation (arXiv 1901.09335); needs single samples
    and whole epochs. The copies of an image are in one global batch, first copies before second copies, so that ranks
    and micro-batches get different images, as in timm and torchvision.
    """

    num_samples: int
    batch_size: int
    seed: int
    samples_per_epoch: int | None = None
    block_size: int = 1
    has_fixed_blocks: bool = False
    repetitions: int = 1
    rank: int = 0
    world_size: int = 1
    weights: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    _shuffles: list[Shuffle] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.samples_per_epoch is not None and not 0 < self.samples_per_epoch <= self.num_samples:
            raise ConfigError(
                f"data.samples_per_epoch={self.samples_per_epoch} must be between 1 and the "
                f"{self.num_samples} training images; use null for all of them"
            )
        if self.weights is not None and (self.block_size > 1 or self.repetitions > 1):
            raise ConfigError("weights= needs shuffle=global and repeated_augmentation=1")
        if self.num_batches == 0:
            most = (self.samples_per_epoch or self.num_samples) // self.world_size
            most -= most % LEAST_BLOCK if self.block_size > 1 else 0
            smaller = (
                f"data.batch_size={most} or less (or data.global_batch_size={most * self.world_size}, if you use it)"
            )
            otherwise = "set data.shuffle=global" if self.block_size > 1 else "use fewer processes"
            remedy = f"set {smaller}" if most else otherwise
            raise BatchTooLarge(
                f"a global batch of {self.global_batch} (data.batch_size={self.batch_size} x {self.world_size} "
                f"processes) is more than the {self.epoch_samples} training images of an epoch; {remedy}"
            )

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world_size

    @property
    def pass_samples(self) -> int:
        """Number of samples in whole blocks."""
        return self.num_samples // self.block_size * self.block_size

    @property
    def epoch_samples(self) -> int:
        return min(self.samples_per_epoch or self.num_samples, self.pass_samples)

    @property
    def num_batches(self) -> int:
        return self.epoch_samples // self.global_batch

    @property
    def num_dropped(self) -> int:
        """Number of samples of each pass after the last whole global batch, which are left out."""
        return 0 if self.samples_per_epoch else self.num_samples - self.num_batches * self.global_batch

    @property
    def num_bytes(self) -> int:
        """Memory that the order takes in each worker: the shuffles of two passes, and the weights."""
        weighted = 4 if self.weights is not None else 1
        return 2 * np.dtype(np.int32).itemsize * (self.num_samples // self.block_size) * weighted

    @property
    def facts(self) -> dict[str, int]:
        weighted = {} if self.weights is None else {WEIGHTS: zlib.crc32(self.weights.tobytes())}
        return weighted | {
            "seed": self.seed,
            GLOBAL_BATCH: self.global_batch,
            "images of a block": self.block_size,
            "training images": self.num_samples,
            "data.samples_per_epoch": self.samples_per_epoch or 0,
            _REPEATED: self.repetitions,
        }

    def sample_ids(self, epoch: int, step: int) -> SampleIds:
        if self.repetitions > 1:
            return self._repeated(epoch, step)
        stride = self.num_batches * self.global_batch if self.samples_per_epoch else self.pass_samples
        start = epoch * stride + step * self.global_batch + self.rank * self.batch_size
        positions = np.arange(start, start + self.batch_size, dtype=np.int64)
        passes, offsets = np.divmod(positions, self.pass_samples)
        indices, pass_ids = np.empty_like(positions), passes.copy()
        for one_pass in np.unique(passes):
            chosen = passes == one_pass
            shuffle = self._shuffle(int(one_pass))
            blocks, places = np.divmod(offsets[chosen], self.block_size)
            places += shuffle.shift + shuffle.blocks[blocks] * np.int64(self.block_size)
            indices[chosen] = places % self.num_samples
            if shuffle.copies is not None:
                pass_ids[chosen] = one_pass * self.num_samples + shuffle.copies[blocks]
        return SampleIds(indices, pass_ids, self.batch_size)

    def _repeated(self, epoch: int, step: int) -> SampleIds:
        positions = step * self.global_batch + np.arange(self.global_batch, dtype=np.int64)
        positions = positions[np.argsort(positions % self.repetitions, kind="stable")]
        mine = positions[self.rank * self.batch_size : (self.rank + 1) * self.batch_size]
        images, copies = np.divmod(mine, self.repetitions)
        indices = self._shuffle(epoch).blocks[images].astype(np.int64)
        return SampleIds(indices, epoch * self.repetitions + copies, self.batch_size)

    def _shuffle(self, one_pass: int) -> Shuffle:
        """The shuffle of a pass. Keeps two shuffles, because reading ahead reaches into the next pass."""
        for shuffle in self._shuffles:
            if shuffle.one_pass == one_pass:
                return shuffle
        generator = np.random.Generator(np.random.Philox(key_of(self.seed, one_pass)))
        if self.weights is not None:
            shuffle = _weighted(one_pass, self.weights, generator.random(self.num_samples))
        else:
            blocks = generator.permutation(np.arange(self.num_samples // self.block_size, dtype=np.int32))
            is_shifted = self.block_size > 1 and not self.has_fixed_blocks
            shift = int(generator.integers(self.num_samples)) if is_shifted else 0
            shuffle = Shuffle(one_pass, blocks, shift)
        self._shuffles[:] = [*self._shuffles[-1:], shuffle]
        return shuffle


def _weighted(one_pass: int, weights: NDArray[np.float64], draws: NDArray[np.float64]) -> Shuffle:
    """One sample for each of `draws`, in [0, 1), with the number of its earlier copies in this pass."""
    shares = np.cumsum(weights / weights.max())  # whose sum is finite
    drawn = np.searchsorted(shares / shares[-1], draws, side="right").astype(np.int32)
    order = np.argsort(drawn, kind="stable")
    copies = np.empty_like(drawn)
    copies[order] = np.arange(len(drawn)) - np.searchsorted(drawn[order], drawn[order])
    return Shuffle(one_pass, drawn, 0, copies)


def block_size_for(batch_size: int) -> int:
    """The largest block of 8 to 16 samples that divides the batch. Raises ConfigError."""
    for size in range(_MOST_BLOCK, LEAST_BLOCK - 1, -1):
        if batch_size % size == 0:
            return size
    raise ConfigError(
        f"data.batch_size={batch_size} does not divide into blocks of {LEAST_BLOCK} to {_MOST_BLOCK} samples; "
        "choose a multiple of 8, or data.shuffle=global"
    )


@dataclass(frozen=True, kw_only=True)
class EvalOrder:
    """Every sample once, in the order of the index; the processes share the last global batch, and padding makes each
    share a whole batch, so that shapes never change.

    order: another order, such as that of `spread_by_class`; int64 (num_samples,).
    """

    num_samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    order: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    block_size: ClassVar[int] = 1
    num_bytes: ClassVar[int] = 0

    @property
    def num_batches(self) -> int:
        return -(-self.num_samples // (self.batch_size * self.world_size))

    @property
    def facts(self) -> dict[str, int]:
        return {GLOBAL_BATCH: self.batch_size * self.world_size, "validation images": self.num_samples}

    def sample_ids(self, epoch: int, step: int) -> SampleIds:
        first = step * self.world_size * self.batch_size
        num = min(self.world_size * self.batch_size, self.num_samples - first)
        start, stop = (first + num * rank // self.world_size for rank in (self.rank, self.rank + 1))
        positions = np.arange(start, start + self.batch_size, dtype=np.int64)
        places = np.where(positions < stop, positions, 0)
        indices = places if self.order is None else self.order[places]
        return SampleIds(indices, np.zeros_like(positions), stop - start)


def spread_by_class(labels: NDArray[Any]) -> NDArray[np.int64]:
    """A fixed order whose first samples have the same share of each class, for an index that is sorted by class.
    labels: (N,). Returns the N indices."""
    counts = np.bincount(labels)
    ranks = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    chance = np.random.Generator(np.random.Philox(0)).random(len(labels))
    by_class: NDArray[np.int64] = np.argsort(labels, kind="stable")
    return by_class[np.argsort((ranks + chance) / np.repeat(counts, counts))]


def limited(num_batches: float, limit: float | None) -> float:
    """Batches that a limit of Lightning leaves: a number (int), a share (float), or all (None)."""
    return min(num_batches, limit) if isinstance(limit, int) else num_batches * (1.0 if limit is None else limit)


def fingerprint(order: TrainOrder | EvalOrder, labels: NDArray[Any], classes: Sequence[str]) -> dict[str, int]:
    """What decides the samples of all batches, besides the position in the run; the same in each process.

    The checksum of the labels changes with the folder tree, and distinguishes a tree from shards, which are shuffled.
    """
    names = "/".join(classes).encode(errors="backslashreplace")
    return order.facts | {_LABELS: zlib.crc32(np.ascontiguousarray(labels).data), _CLASSES: zlib.crc32(names)}


def check_fingerprint(saved: Mapping[str, Any], now: Mapping[str, int], *, otherwise: str) -> None:
    """Raise CheckpointMismatch, with what differs, unless the order is that of the state `saved`. otherwise: what to do
    if other batches are wanted."""
    old = {_REPEATED: 1, _CLASSES: now[_CLASSES], WEIGHTS: 0, ROWS: 0}  # older checkpoints lack these keys
    saved, now = {**old, STEPS: now.get(STEPS), **saved}, {WEIGHTS: 0, ROWS: 0, **now}
    if absent := [name for name in now if name not in saved]:
        raise CheckpointMismatch(f"this is no state of such a loader, since it lacks {', '.join(absent)}; {otherwise}")
    changed = {name: saved[name] for name, fact in now.items() if saved[name] != fact}
    if changed:
        changes = "; ".join(f"{name} was {before}, is now {now[name]}" for name, before in changed.items())
        raise CheckpointMismatch(
            f"the run cannot resume with other batches: {changes}. Set seed, data.root (packed or not), "
            "data.shuffle, data.samples_per_epoch, data.repeated_augmentation, trainer.limit_train_batches and "
            f"data.batch_size x processes (or data.global_batch_size) as before, or {otherwise}"
        )
