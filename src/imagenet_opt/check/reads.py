"""How much a check reads from a URL, since the service charges for it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.check.corrupt import CHUNK
from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.storage.cached_store import CachedStore, uncached
from imagenet_opt.data.storage.store import Store
from imagenet_opt.display.progress import size
from imagenet_opt.measure.storage.request_price import DOLLARS_PER_1000_GETS, dollars, price_of_gets

Rows = NDArray[np.int64]


def about_reads(
    splits: Sequence[FileIndex | ShardIndex],
    sizes: Sequence[Rows],
    decoded: Sequence[Rows],
    compared: Sequence[Rows],
    loading: LoaderOptions,
) -> str:
    """A line about the requests and bytes that decoding and comparing these rows of each split read."""
    num_requests = num_bytes = 0
    is_cached = False
    for index, of_split, *rows in zip(splits, sizes, decoded, compared, strict=True):
        store = store_of(index, loading)
        read = _read_rows(store, rows[:1] if isinstance(index, ShardIndex) else rows)
        inner = uncached(store)
        num_requests += sum(len(inner.groups(read[i : i + CHUNK])) for i in range(0, len(read), CHUNK))
        num_bytes += int(of_split[read].sum())
        is_cached |= isinstance(store, CachedStore)
    cache = "what fits stays in data.cache_dir" if is_cached else "nothing is kept, because there is no cache"
    return (
        f"the images are read with about {num_requests:,} GET requests, {size(num_bytes)}: "
        f"{dollars(price_of_gets(num_requests))} at ${DOLLARS_PER_1000_GETS} per 1000 requests (S3, us-east-1); {cache}"
    )


def _read_rows(store: Store, rows: Sequence[Rows]) -> Rows:
    """The rows that are read from the storage, twice if they are wanted twice and not kept in the cache."""
    wanted = np.concatenate(rows)
    if not isinstance(store, CachedStore):
        return wanted
    kept = store.folder.keeps(wanted)
    wanted = np.concatenate([np.unique(wanted[kept]), wanted[~kept]])
    return wanted[~store.folder.holds(wanted)]
