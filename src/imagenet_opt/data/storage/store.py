"""Stores provide the bytes of samples: the interface, images in memory, slow storage, and a local cache."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from imagenet_opt.data.storage.cache_folder import CacheFolder
from imagenet_opt.data.storage.retry import Events

Indices = NDArray[np.int64]
_LINK = threading.Lock()  # no attribute of a store, because locks cannot be pickled


class Store(Protocol):
    """Provides the encoded bytes of samples by index. Retries, timeouts and concurrency belong to the reader."""

    def __len__(self) -> int:
        """Number of samples."""

    def groups(self, indices: Indices) -> list[Indices]:
        """Positions in `indices` of the samples that one request reads together."""

    def read_many(self, indices: Indices) -> list[bytes]:
        """Bytes of each sample, in the order of `indices`; may be called by many threads. Raises OSError."""

    def name(self, index: int) -> str:
        """Name of a sample for messages: its path."""


@dataclass
class MemoryStore:
    """Images in memory. Sample i has the bytes encoded[i % len(encoded)]."""

    encoded: Sequence[bytes]
    num_samples: int

    def __len__(self) -> int:
        return self.num_samples

    def groups(self, indices: Indices) -> list[Indices]:
        return [np.arange(len(indices))]

    def read_many(self, indices: Indices) -> list[bytes]:
        return [self.encoded[i % len(self.encoded)] for i in indices.tolist()]

    def name(self, index: int) -> str:
        return f"file {index % len(self.encoded)} in memory"


@dataclass
class ThrottledStore:
    """Any store as slow shared storage, for rehearsals on a fast disk.

    latency_seconds: added to each request. bytes_per_second: of all requests of a process together; loader workers
    have equal shares of it; None: no limit.
    """

    store: Store
    latency_seconds: float = 0.0
    bytes_per_second: float | None = None
    _link_free_at: float = 0.0

    def __len__(self) -> int:
        return len(self.store)

    def groups(self, indices: Indices) -> list[Indices]:
        return self.store.groups(indices)

    def read_many(self, indices: Indices) -> list[bytes]:
        began = time.monotonic()
        encoded = self.store.read_many(indices)
        done = began + self.latency_seconds
        if self.bytes_per_second is not None:
            worker = get_worker_info()
            num_shares = 1 if worker is None else worker.num_workers
            with _LINK:  # one transfer at a time
                done = max(self._link_free_at, done) + num_shares * sum(map(len, encoded)) / self.bytes_per_second
                self._link_free_at = done
        time.sleep(max(0.0, done - time.monotonic()))
        return encoded

    def name(self, index: int) -> str:
        return self.store.name(index)


class CachedStore:
    """`store`, with the samples that were read once in a folder on a local disk. rows: int64 (n,), the samples of
    `store` that this store has, in order; None: all. Threads and processes of a machine may share the folder.

    If not all samples fit, a fixed part is kept, and nothing is ever replaced. Each epoch uses each sample once, in
    random order, so replacing the least recently used sample would find fewer: 15 % instead of 50 % with room for half
    (J. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021).

    events: `cache_hits` and `cache_misses`, samples from the cache and from the storage; `cache_damaged`, samples whose
    bytes in the cache did not fit their checksum, and which were fetched again.
    """

    def __init__(self, store: Store, folder: CacheFolder, *, rows: Indices | None = None) -> None:
        self.store, self.folder, self.rows = store, folder, rows
        self.events = Events()

    def __len__(self) -> int:
        return len(self.store if self.rows is None else self.rows)

    def name(self, index: int) -> str:
        return self.store.name(index if self.rows is None else int(self.rows[index]))

    def holds(self, indices: Indices) -> bool:
        """Whether the cache has all of these samples."""
        return bool(self.folder.holds(self._in_whole(indices)).all())

    def groups(self, indices: Indices) -> list[Indices]:
        """Samples in the cache are one group, because each of them needs no request of its own."""
        indices = self._in_whole(indices)
        held = self.folder.holds(indices)
        hits, misses = np.flatnonzero(held), np.flatnonzero(~held)
        fetched = [misses[group] for group in self.store.groups(indices[misses])] if len(misses) else []
        return [hits, *fetched] if len(hits) else fetched

    def read_many(self, indices: Indices) -> list[bytes]:
        indices, found = self._in_whole(indices), dict[int, bytes]()
        wanted = np.unique(indices)
        held = self.folder.holds(wanted)
        for index in wanted[held].tolist():
            if (encoded := self.folder.read(index)) is None:
                self.events.add("cache_damaged")
            else:
                found[index] = encoded
        self.events.add("cache_hits", len(found))
        absent = np.array([index for index in wanted.tolist() if index not in found], np.int64)
        for group in self.store.groups(absent) if len(absent) else []:
            self._fetch(absent[group], found)
        return [found[index] for index in indices.tolist()]

    def _in_whole(self, indices: Indices) -> Indices:
        """The same samples, as samples of `store`."""
        return indices if self.rows is None else self.rows[indices]

    def _fetch(self, indices: Indices, found: dict[int, bytes]) -> None:
        fetched = self.store.read_many(indices)
        for index, encoded in zip(indices.tolist(), fetched, strict=True):
            self.folder.write(index, encoded)
            found[index] = encoded
        self.events.add("cache_misses", len(fetched))
