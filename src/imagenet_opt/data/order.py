"""Which samples make up which batch: a pure function of (seed, epoch, step, rank)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.randomness import key_of
from imagenet_opt.errors import BatchTooLarge, ConfigError


class Draw(NamedTuple):
    """One rank's samples of one batch: int64 (batch_size,) each, and how many of them are not padding.

    `passes` counts how often the whole data set was seen before that draw; with whole epochs it is the epoch.
    """

    indices: NDArray[np.int64]
    passes: NDArray[np.int64]
    num_valid: int


@dataclass(frozen=True, kw_only=True)
class TrainOrder:
    """A new shuffle for each pass over the data; the last partial global batch of an epoch is dropped.

    With `samples_per_epoch` passes are laid end to end and cut into epochs of so many samples, rounded down to whole
    batches, so that every sample is seen once before any sample twice. Rank r takes the r-th part of each global batch.

    Raises BatchTooLarge when not even one global batch fits.
    """

    num_samples: int
    batch_size: int
    seed: int
    samples_per_epoch: int | None = None
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.samples_per_epoch is not None and not 0 < self.samples_per_epoch <= self.num_samples:
            raise ConfigError(
                f"data.samples_per_epoch={self.samples_per_epoch} must be between 1 and the "
                f"{self.num_samples} training images; use null for all of them"
            )
        if self.num_batches == 0:
            raise BatchTooLarge(
                f"a global batch of {self.global_batch} (data.batch_size={self.batch_size} x {self.world_size} "
                f"processes) is more than the {self.epoch_samples} training images of an epoch; "
                f"lower data.batch_size to at most {self.epoch_samples // self.world_size}"
            )

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world_size

    @property
    def epoch_samples(self) -> int:
        return self.samples_per_epoch or self.num_samples

    @property
    def num_batches(self) -> int:
        return self.epoch_samples // self.global_batch

    @property
    def num_dropped(self) -> int:
        """Samples of each pass that fill no whole global batch and are left out of it."""
        return self._stride - self.num_batches * self.global_batch

    @property
    def _stride(self) -> int:
        return self.num_samples if self.samples_per_epoch is None else self.num_batches * self.global_batch

    def draw(self, epoch: int, step: int) -> Draw:
        start = epoch * self._stride + step * self.global_batch + self.rank * self.batch_size
        positions = np.arange(start, start + self.batch_size, dtype=np.int64)
        passes, offsets = np.divmod(positions, self.num_samples)
        indices = np.empty_like(positions)
        for one_pass in np.unique(passes):
            chosen = passes == one_pass
            indices[chosen] = self._shuffled(int(one_pass))[offsets[chosen]]
        return Draw(indices, passes, self.batch_size)

    def _shuffled(self, one_pass: int) -> NDArray[np.int32]:
        cached: tuple[int, NDArray[np.int32]] | None = self.__dict__.get("_cached")
        if cached is None or cached[0] != one_pass:
            generator = np.random.Generator(np.random.Philox(key_of(self.seed, one_pass)))
            cached = one_pass, generator.permutation(np.arange(self.num_samples, dtype=np.int32))
            object.__setattr__(self, "_cached", cached)
        return cached[1]


@dataclass(frozen=True, kw_only=True)
class EvalOrder:
    """Every sample once, in the order of the index; the last batch is padded, so that shapes never change."""

    num_samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1

    @property
    def num_batches(self) -> int:
        return -(-self.num_samples // (self.batch_size * self.world_size))

    def draw(self, epoch: int, step: int) -> Draw:
        start = (step * self.world_size + self.rank) * self.batch_size
        positions = np.arange(start, start + self.batch_size, dtype=np.int64)
        num_valid = int(np.clip(self.num_samples - start, 0, self.batch_size))
        return Draw(np.where(positions < self.num_samples, positions, 0), np.zeros_like(positions), num_valid)
