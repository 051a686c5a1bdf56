"""Fills the local caches of remote splits, so that training does not wait for the storage in its first epoch."""

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping

from imagenet_opt.config.dataset import DataSet
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.storage.read_pool import ReadPool, ReadTask
from imagenet_opt.data.storage.store import CachedStore, Store
from imagenet_opt.display.printable import printable
from imagenet_opt.display.progress import progress
from imagenet_opt.errors import BadSample, ConfigError
from imagenet_opt.hydrate.hydrate import Tally, print_tally

_PORTION = 1024
"""Samples whose requests are planned together."""


def fill_caches_of(data: DataSet, *, in_flight: int) -> Tally:
    """Fill the caches of both splits of a data set whose root is a URL, see `fill_caches`."""
    indexes = {str(index.place): index for index in map(data.open, ("train", "val"))}
    stores = {url: store_of(index, data.loading) for url, index in indexes.items()}
    return fill_caches(stores, in_flight=in_flight, read_timeout=data.loading.read_timeout)


def fill_caches(stores: Mapping[str, Store], *, in_flight: int, read_timeout: float) -> Tally:
    """Fetch all samples that the caches keep and lack, and print the result. stores: by the URL of the split.

    Raises ConfigError if a store has no cache, or a cache cannot be written; ReadTimeout, StorageFailed.
    """
    tally, began, total = Tally(), time.perf_counter(), 0
    for url, store in stores.items():
        if not isinstance(store, CachedStore):
            raise ConfigError(
                f"there is no cache of {url} to fill; set data.cache_gb=null, and data.cache_dir to a folder on a "
                "local disk"
            )
        num_kept, left = store.folder.num_kept, len(store.folder.missing())
        part = "" if num_kept == len(store) else f" of {len(store)}, the part that fits (data.cache_gb, data.cache_dir)"
        line = f"{url}: {left} images to fetch; the cache has {num_kept - left}, and keeps {num_kept}{part}"
        print(printable(line), flush=True)
        total += left
    if not total:
        return tally
    try:
        with progress("filling the cache", "images") as show:
            for store in stores.values():
                assert isinstance(store, CachedStore)
                _fill(store, tally, in_flight, read_timeout, lambda: show(tally.num_tried, total, tally.num_bytes))
    except KeyboardInterrupt:
        left = total - tally.num_files
        print(f"stopped with {left} images left; run the same command again to resume", file=sys.stderr)
        raise
    seconds = time.perf_counter() - began
    print_tally(tally, tally.bad.values(), seconds, in_flight, done="fetched", unit="images")
    return tally


def _fill(
    store: CachedStore, tally: Tally, in_flight: int, read_timeout: float, on_progress: Callable[[], None]
) -> None:
    """Samples that cannot be read are listed in `tally`, and tried again by the next call."""
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
