"""Keeps the samples of a remote storage on a local disk, from their first use on.

If not all samples fit, a fixed part is kept, and nothing is ever replaced. Each epoch uses each sample once, in random
order, so replacing the least recently used sample would find fewer: 15 % instead of 50 % with room for half (J. Mohan
et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021).
"""

import numpy as np

from imagenet_opt.data.index.object_index import RemoteIndex
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.storage.cache_folder import CacheFolder, open_cache
from imagenet_opt.data.storage.retry import Events
from imagenet_opt.data.storage.store import Indices, Store


class CachedStore:
    """`store`, with the samples that were read once in a folder on a local disk. rows: int64 (n,), the samples of
    `store` that this store has, in order; None: all. Threads and processes of a machine may share the folder.

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
        self._read_present(wanted[held], found)
        absent = np.array([index for index in wanted.tolist() if index not in found], np.int64)
        for group in self.store.groups(absent) if len(absent) else []:
            self._fetch(absent[group], found)
        return [found[index] for index in indices.tolist()]

    def _in_whole(self, indices: Indices) -> Indices:
        """The same samples, as samples of `store`."""
        return indices if self.rows is None else self.rows[indices]

    def _read_present(self, indices: Indices, found: dict[int, bytes]) -> None:
        num_damaged = 0
        for index in indices.tolist():
            encoded = self.folder.read(index)
            if encoded is None:
                num_damaged += 1
            else:
                found[index] = encoded
        self.events.add("cache_hits", len(indices) - num_damaged)
        self.events.add("cache_damaged", num_damaged)

    def _fetch(self, indices: Indices, found: dict[int, bytes]) -> None:
        fetched = self.store.read_many(indices)
        for index, encoded in zip(indices.tolist(), fetched, strict=True):
            self.folder.write(index, encoded)
            found[index] = encoded
        self.events.add("cache_misses", len(fetched))


def cache_of(index: RemoteIndex, options: LoaderOptions, *, drop_pages: bool = False) -> CacheFolder | None:
    """The cache of a whole split below data.cache_dir; None if `options` want none, or no folder can be used.

    drop_pages: whether to evict samples from the page cache after reading.
    """
    if options.cache_gb == 0 or not index.is_whole:
        return None
    most_bytes = np.inf if options.cache_gb is None else options.cache_gb * 1e9
    path = index.cache_dir / "samples" / index.fingerprint
    return open_cache(path, index.place, index.sizes, most_bytes=most_bytes, drop_pages=drop_pages)
