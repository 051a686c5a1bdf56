"""Samples of experiments below a URL: in the local cache, or in the storage."""

from functools import cached_property, partial

import numpy as np

from imagenet_opt.data.index.split import Split
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.storage.cache_folder import CacheFolder
from imagenet_opt.data.storage.retry import retry_transient
from imagenet_opt.data.storage.store import CachedStore, Store
from imagenet_opt.measure.storage.page_cache import Eviction, Extent, Residency, evicted
from imagenet_opt.probe.samples import Rows, Samples
from imagenet_opt.processes import wait_for_server

_METHOD = "data.cache_dir"


class RemoteSamples(Samples):
    """Samples below a URL. "In memory" stands for the disk of the local cache, from which later epochs read; "on
    storage" for the storage itself, from which the first epoch reads."""

    def __init__(self, index: Split, loading: LoaderOptions, *, seed: int | None = None) -> None:
        super().__init__(index, loading, seed=seed)
        wait_for_server()

    @cached_property
    def cache(self) -> CacheFolder | None:
        """The local cache of the whole training set; None without one."""
        return self.store.folder if isinstance(self.store, CachedStore) else None

    @property
    def cache_room(self) -> float:
        """Share of the bytes of the training set that later epochs find in the local cache."""
        return 0.0 if self.cache is None else self.cache.served_bytes() / max(1, int(self.cache.starts[-1]))

    def store_for(self, index: Split, *, cold: bool) -> Store:
        return store_of(index, self.loading, use_cache=not cold, drop_pages=not cold)

    def keepable(self, rows: Rows) -> Rows:
        return rows[:0] if self.cache is None else rows[self.cache.serves(rows)]

    def read_into_memory(self, rows: Rows, *, least: int, seconds: float) -> None:
        super().read_into_memory(rows, least=least, seconds=seconds)
        if self.cache is not None:  # what was just written is still in memory
            evicted(Extent(*self.cache.place(row)) for row in self._held(self.warm_rows).tolist())

    def evict(self, rows: Rows) -> Eviction:
        return Eviction(Residency(0.0, "each read is a request to the storage"), len(rows))

    def residency(self) -> Residency:
        return self._share_held(np.arange(len(self.index)))

    def kept(self) -> Residency:
        return self._share_held(self.warm_rows)

    def _rows_to_warm(self, num: int) -> Rows:
        kept = self.keepable(self.rows)[:num]
        return kept if len(kept) else super()._rows_to_warm(num)

    def _held(self, rows: Rows) -> Rows:
        return rows[:0] if self.cache is None else rows[self.cache.holds(rows)]

    def _share_held(self, rows: Rows) -> Residency:
        return Residency(len(self._held(rows)) / max(1, len(rows)), _METHOD)

    def _read_many(self, store: Store, rows: Rows) -> list[bytes]:
        """Temporary errors are repeated, as in training, but without warnings: a test with many requests in flight may
        provoke them."""
        patience, name = self.loading.read_timeout / 2, store.name(int(rows[0]))
        return retry_transient(partial(store.read_many, rows), name, patience, warn=lambda message: None)


def samples_of(index: Split, loading: LoaderOptions, *, seed: int | None = None) -> Samples:
    """The samples of a training set, in a folder or below a URL. Raises ConfigError for too few samples."""
    kind = RemoteSamples if index.is_remote else Samples
    return kind(index, loading, seed=seed)
