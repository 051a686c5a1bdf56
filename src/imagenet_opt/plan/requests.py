"""Computes the requests of a run whose data lies below a URL, and their price."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.order import block_size_for
from imagenet_opt.data.storage.cached_store import CachedStore
from imagenet_opt.data.storage.store import Store

_Requests = tuple[float, float, int]
"""Requests, bytes and number of the samples that are read from the storage."""
_SAMPLED = 100
"""Portions of an epoch from which the requests are estimated."""


@dataclass(frozen=True)
class EpochRequests:
    """An epoch of training and validation. requests: GET requests, estimated. num_bytes: read from the URL.
    cached_percent: share of the samples that come from the local cache. cached_train_percent: share of the training
    samples alone."""

    requests: float
    num_bytes: float
    cached_percent: float
    cached_train_percent: float


def epoch_requests(
    train: FileIndex | ShardIndex, val: FileIndex | ShardIndex, loading: LoaderOptions
) -> tuple[EpochRequests, EpochRequests]:
    """Requests of the next epoch, and of each epoch after it, when the cache holds all samples that fit.

    A part of the training images is read in random order (data.shuffle=global), or in blocks of neighbours, which one
    request reads from shards; validation images are read in order.
    """
    block = block_size_for(loading.batch_size) if loading.shuffle == "block" else 1
    of_splits = []
    for index, portion in ((train, block), (val, min(loading.batch_size, len(val)))):
        store = store_of(index, loading)
        missing = [np.ones(len(index), bool)] * 2
        if isinstance(store, CachedStore):
            missing = [~store.folder.holds(np.arange(len(index))), np.arange(len(index)) >= store.folder.num_kept]
        of_splits.append([_requests(store, index.sizes, rows, portion) for rows in missing])  # type: ignore[union-attr]
    first, later = (_epoch(of_train, of_val, len(train), len(val)) for of_train, of_val in zip(*of_splits, strict=True))
    return first, later


def _epoch(train: _Requests, val: _Requests, num_train: int, num_val: int) -> EpochRequests:
    num_requests, num_bytes, num_missing = map(sum, zip(train, val, strict=True))
    percent = 100 * (1 - num_missing / (num_train + num_val))
    return EpochRequests(num_requests, num_bytes, percent, 100 * (1 - train[2] / num_train))


def _requests(store: Store, sizes: NDArray[np.int64], missing: NDArray[np.bool_], portion: int) -> _Requests:
    """missing: whether each sample is absent from the cache. portion: consecutive samples that are read together."""
    inner: Store = store.store if isinstance(store, CachedStore) else store
    starts = np.arange(0, len(sizes), portion)
    chosen = starts[np.linspace(0, len(starts) - 1, min(_SAMPLED, len(starts))).astype(int)]
    num = 0
    for start in chosen.tolist():
        rows = np.flatnonzero(missing[start : start + portion]) + start
        num += len(inner.groups(rows)) if len(rows) else 0
    requests = float(missing.sum()) if portion == 1 else num * len(starts) / len(chosen)
    return requests, float(sizes[missing].sum()), int(missing.sum())
