"""Fills the local caches of remote splits, so that training does not wait for the storage in its first epoch."""

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from imagenet_opt.config.dataset import DataSet
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.storage.cached_store import CachedStore
from imagenet_opt.data.storage.read_pool import ReadPool, ReadTask
from imagenet_opt.data.storage.store import Store
from imagenet_opt.display.printable import printable
from imagenet_opt.display.progress import progress
from imagenet_opt.errors import BadSample, ConfigError
from imagenet_opt.hydrate.hydrate import Tally
from imagenet_opt.hydrate.run import print_tally

_PORTION = 1024
"""Samples whose requests are planned together."""


def fill_caches_of(data: DataSet, splits: Sequence[str], *, in_flight: int, again: bool) -> Tally:
    """Fill the caches of the splits of a data set whose root is a URL, see `fill_caches`."""
    indexes = {str(index.place): index for index in (data.open(split) for split in splits)}
    stores = {url: store_of(index, data.loading) for url, index in indexes.items()}
    return fill_caches(stores, in_flight=in_flight, read_timeout=data.loading.read_timeout, again=again)


def fill_caches(stores: Mapping[str, Store], *, in_flight: int, read_timeout: float, again: bool) -> Tally:
    """Fetch all samples that the caches keep and do not hold yet, and print the result.

    stores: by the URL of the split. again: fetch the samples that the caches hold, too.

    Raises ConfigError if a store has no cache, or a cache cannot be written; ReadTimeout, StorageFailed.
    """
    tally, began = Tally(), time.perf_counter()
    caches = {url: _need_cache(url, store) for url, store in stores.items()}
    for url, cache in caches.items():
        if again:
            cache.folder.forget()
        _announce(url, cache)
    total = sum(len(cache.folder.missing()) for cache in caches.values())
    if not total:
        return tally
    try:
        with progress("filling the cache", "images") as show:
            for cache in caches.values():
                fill(
                    cache,
                    tally,
                    in_flight=in_flight,
                    read_timeout=read_timeout,
                    on_progress=lambda: show(tally.num_tried, total, tally.num_bytes),
                )
    except KeyboardInterrupt:
        left = total - tally.num_files
        print(f"stopped with {left} images left; run the same command again to resume", file=sys.stderr)
        raise
    seconds = time.perf_counter() - began
    print_tally(tally, tally.bad.values(), seconds, in_flight, done="fetched", unit="images")
    return tally


def fill(
    store: CachedStore,
    tally: Tally,
    *,
    in_flight: int,
    read_timeout: float,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Fetch all samples that the cache keeps and does not hold, `in_flight` requests at a time. Samples that cannot be
    read are listed in `tally`, and tried again by the next call. Raises as `fill_caches`."""
    pool = ReadPool(store, timeout_seconds=read_timeout)
    running: deque[ReadTask] = deque()

    def finish(most: int) -> None:
        while len(running) > most:
            _record(pool, running.popleft(), tally)
            _check_writable(store)
            on_progress()

    _check_writable(store)
    missing = store.folder.missing()
    for start in range(0, len(missing), _PORTION):
        portion = missing[start : start + _PORTION]
        for group in store.groups(portion):
            running.append(pool.start([group], [portion[group]], in_flight, stop_when_slow=False))
            finish(2 * in_flight)
    finish(0)


def _need_cache(url: str, store: Store) -> CachedStore:
    if isinstance(store, CachedStore):
        return store
    raise ConfigError(
        f"there is no cache of {url} to fill; set data.cache_gb=null, and data.cache_dir to a folder on a local disk"
    )


def _record(pool: ReadPool, task: ReadTask, tally: Tally) -> None:
    (samples,) = pool.answer(task)
    for index, sample in zip(task.wanted[0].tolist(), samples, strict=True):
        if isinstance(sample, BadSample):
            tally.bad[pool.store.name(index)] = str(sample)
        else:
            tally.num_files += 1
            tally.num_bytes += len(sample)


def _check_writable(store: CachedStore) -> None:
    if reason := store.folder.stopped:
        raise ConfigError(
            f"{store.folder.path} (data.cache_dir) cannot be written: {reason}; free room, or set data.cache_dir to "
            "another disk, or keep fewer samples with data.cache_gb, and run the same command again; it resumes"
        )


def _announce(url: str, store: CachedStore) -> None:
    num_kept, left = store.folder.num_kept, len(store.folder.missing())
    part = "" if num_kept == len(store) else f" of {len(store)}, the part that fits (data.cache_gb, data.cache_dir)"
    if not left:
        print(printable(f"{url}: nothing to do: the cache has {num_kept} images{part} (--again fetches them again)"))
    else:
        have = num_kept - left
        print(printable(f"{url}: {left} images to fetch; the cache has {have}, and keeps {num_kept}{part}"), flush=True)
