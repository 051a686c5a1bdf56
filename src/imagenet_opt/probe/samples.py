"""Chooses the samples of experiments, and notes which are in memory and which are on storage."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.split import Split, subset
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.order import LEAST_BLOCK, block_size_for
from imagenet_opt.data.storage.store import Store
from imagenet_opt.errors import BadSample, ConfigError, DataError
from imagenet_opt.measure.storage.page_cache import Eviction, Extent, Residency, evicted, residency_of

Rows = NDArray[np.int64]

_IN_MEMORY = 512
"""Files that are decoded from memory: more than fit into a CPU's caches."""
_NUM_CHECKED = 200
_LEAST_IMAGES = 64
_COLD = 30_000
"""Most files of one experiment on storage."""
_LEAST_COLD = 1024
"""Least files of one experiment on storage; with fewer, two requests at a time may share one read of the same file."""
_LISTED = 100_000
"""Least samples of an index, so that no epoch ends within an experiment."""
_WARMING = 64
"""Requests in flight while files are read into memory."""
_FEW = 32
"""Files that represent the data set."""


class Samples:
    """A training set for experiments. Each experiment takes samples that no earlier experiment has read, as long as
    such samples are left.

    seed: None draws different samples each time, so that no file server has them in memory. With a seed all processes
    draw the same samples, so files that one process has read are in memory for the next process. warm_rows: samples
    that `warm` has read into memory (before `warm`, a few from `read_few`). encoded: the bytes of the first warm_rows.
    Raises ConfigError for too few samples.
    """

    def __init__(self, index: Split, loading: LoaderOptions, *, seed: int | None = None) -> None:
        if len(index) < _LEAST_IMAGES:
            few = f"{len(index)} training images are too few to measure (data.root)"
            raise ConfigError(f"{few}; expected {_LEAST_IMAGES} or more")
        self.index = index
        self.loading = loading
        is_in_blocks = loading.shuffle == "block" and loading.batch_size >= LEAST_BLOCK  # tune begins with one image
        self._block = block_size_for(loading.batch_size) if is_in_blocks else 1
        self.rows = in_blocks(len(index), self._block, seed=seed)
        self._taken = 0
        self.warm_rows: Rows = self.rows[:0]
        self.encoded: list[bytes] = []
        self._few: Rows = self.rows[:0]
        self._why_unreadable = "the files are empty"

    @cached_property
    def store(self) -> Store:
        """Leaves in memory what it reads."""
        return self.store_for(self.index, cold=False)

    @cached_property
    def storage(self) -> Store:
        """Reads from storage each time."""
        return self.store_for(self.index, cold=True)

    def store_for(self, index: Split, *, cold: bool) -> Store:
        """The store of an index of these samples. cold: whether each read goes to storage."""
        return store_of(index, self.loading, drop_pages=cold)

    @property
    def is_packed(self) -> bool:
        """Whether the samples are of `imagenet-opt pack`, which alone keeps checksums."""
        return len(self.index.checksums) > 0

    def take(self, num: int) -> Rows:
        """Samples that no experiment has read, in whole blocks; once all are used, the least recently used ones."""
        num = -(-num // self._block) * self._block
        rows = np.take(self.rows, np.arange(self._taken, self._taken + min(num, len(self.rows))), mode="wrap")
        self._taken += len(rows)
        return rows

    def extents(self, rows: Rows) -> list[Extent]:
        """File, offset and size of each sample."""
        index, files = self.index, [f"{self.index.place}/{self.index.file(i)}" for i in rows.tolist()]
        if not index.containers:
            return list(map(Extent, files))
        return list(map(Extent, files, index.offsets[rows].tolist(), index.sizes[rows].tolist()))

    def read(self, rows: Rows) -> list[bytes]:
        """The bytes of samples; empty for a sample that training would skip."""
        return self._read(self.store, rows)

    def read_and_drop(self, rows: Rows) -> list[bytes]:
        """Read samples and evict their files from the page cache."""
        return self._read(self.storage, rows)

    def _read(self, store: Store, rows: Rows) -> list[bytes]:
        try:
            return self._read_many(store, rows)
        except (OSError, BadSample) as error:
            self._why_unreadable = str(error)
            return [b""] * len(rows)

    def _read_many(self, store: Store, rows: Rows) -> list[bytes]:
        return store.read_many(rows)

    def keepable(self, rows: Rows) -> Rows:
        """Those of the samples that stay in memory after they were read."""
        return rows

    def read_few(self) -> None:
        """Read a few samples, which later experiments use only if no other samples are left."""
        if not len(self._few):
            self._few = self.take(_FEW)
            if not self.encoded:
                self.read_into_memory(self._few, least=_FEW, seconds=0.0)

    def warm(self, seconds: float) -> None:
        """Read files into memory for this many seconds, at least the files of two batches."""
        least = min(2 * self.loading.batch_size, len(self.index))
        rows = self._rows_to_warm(max(min(4096, len(self.index) // 4), least))
        self.read_into_memory(rows, least=least, seconds=seconds)

    def _rows_to_warm(self, num: int) -> Rows:
        return self.take(num)

    def read_into_memory(self, rows: Rows, *, least: int, seconds: float) -> None:
        """Read these samples into memory for this many seconds, at least `least` of them. Raises DataError if none
        can be read."""
        began = time.perf_counter()
        kept: list[int] = []

        def read(row: int) -> bytes | None:
            if time.perf_counter() - began > seconds and len(kept) >= least:
                return None
            if not (encoded := self.read(np.array([row]))[0]):
                return None
            kept.append(row)
            return encoded if len(kept) <= _IN_MEMORY else b""

        with ThreadPoolExecutor(_WARMING) as threads:
            contents = list(threads.map(read, rows.tolist()))
        self.encoded = [content for content in contents if content]
        if not self.encoded:
            raise DataError(
                f"none of {len(rows)} files under {self.index.place} can be read (data.root): {self._why_unreadable}"
            )
        has_bytes = np.array([bool(content) for content in contents])
        was_read = np.array([content is not None for content in contents])
        self.warm_rows = np.concatenate([rows[has_bytes], rows[was_read & ~has_bytes]])

    def evict(self, rows: Rows) -> Eviction:
        """Evict the samples from the page cache."""
        return evicted(self.extents(rows))

    def residency(self) -> Residency:
        """Share of the data in the page cache, estimated from some samples."""
        rows = np.random.default_rng(0).permutation(len(self.index))[:_NUM_CHECKED]
        return residency_of(self.extents(rows))

    def cold(self) -> tuple[Rows, Eviction]:
        """Samples that are not in the page cache, and the evidence that they are not."""
        rows = self.take(min(max(self.loading.batch_size, len(self.index) // 4, _LEAST_COLD), _COLD))
        return rows, self.evict(rows)

    def cold_rows(self) -> Rows:
        return self.cold()[0]

    def listed(self, rows: Rows, num: int = _LISTED) -> Split:
        """An index of these samples, repeated until it has at least `num`."""
        return subset(self.index, np.tile(rows, -(-num // len(rows))))

    def kept(self) -> Residency:
        """Share of the samples read by `warm` that is still in memory."""
        return residency_of(self.extents(self.warm_rows[:_NUM_CHECKED]))

    @property
    def in_memory(self) -> Split:
        """An index of the samples whose bytes are kept."""
        return self.listed(self.warm_rows[: len(self.encoded)])


def in_blocks(num: int, block_size: int, *, seed: int | None = None) -> Rows:
    """Samples in a random order of blocks of neighbours, as with data.shuffle=block; blocks of 1: in any order."""
    blocks = np.random.default_rng(seed).permutation(num // block_size)
    rows: Rows = (block_size * blocks[:, None] + np.arange(block_size)).ravel()
    return rows
