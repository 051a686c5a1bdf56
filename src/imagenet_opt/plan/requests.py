"""Computes the requests of a run whose data lies below a URL, and their price."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.order import block_size_for
from imagenet_opt.data.storage.cached_store import CachedStore, uncached
from imagenet_opt.data.storage.store import Store

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


class _Reads(NamedTuple):
    """What an epoch of a split reads from the storage: requests (estimated), bytes, samples."""

    requests: float
    num_bytes: float
    num_samples: float


def epoch_requests(
    train: FileIndex | ShardIndex,
    val: FileIndex | ShardIndex,
    loading: LoaderOptions,
    *,
    num_train: int,
    validations: float,
) -> tuple[EpochRequests, EpochRequests]:
    """Requests of the next epoch, and of each epoch after it, when the cache holds all samples that fit.

    num_train: training images of an epoch. validations: of all validation images in an epoch, as a mean of the run.

    A part of the training images is read in random order (data.shuffle=global), or in blocks of neighbours, which one
    request reads from shards; validation images are read in order.
    """
    block = block_size_for(loading.batch_size) if loading.shuffle == "block" else 1
    num_train = min(num_train, len(train))
    trains = [_part(reads, num_train / len(train)) for reads in _first_and_later(train, loading, block)]
    vals = [_part(reads, validations) for reads in _first_and_later(val, loading, min(loading.batch_size, len(val)))]
    first, later = (_epoch(*reads, num_train, validations * len(val)) for reads in zip(trains, vals, strict=True))
    return first, later


def _part(reads: _Reads, share: float) -> _Reads:
    return _Reads(*(share * number for number in reads))


def _epoch(train: _Reads, val: _Reads, num_train: int, num_val: float) -> EpochRequests:
    missing = (train.num_samples + val.num_samples) / (num_train + num_val)
    return EpochRequests(
        requests=train.requests + val.requests,
        num_bytes=train.num_bytes + val.num_bytes,
        cached_percent=100 * (1 - missing),
        cached_train_percent=100 * (1 - train.num_samples / num_train),
    )


def _first_and_later(index: FileIndex | ShardIndex, loading: LoaderOptions, portion: int) -> tuple[_Reads, _Reads]:
    """Reads of all samples now, and when the cache holds all samples that it keeps. portion: consecutive samples that
    are read together."""
    store, rows = store_of(index, loading), np.arange(len(index))
    now = later = np.ones(len(index), bool)
    if isinstance(store, CachedStore):
        now, later = ~store.folder.holds(rows), ~store.folder.serves(rows)
    inner = uncached(store)
    sizes = index.sizes  # type: ignore[union-attr]  # each index below a URL has sizes
    return _reads(inner, sizes, now, portion), _reads(inner, sizes, later, portion)


def _reads(store: Store, sizes: NDArray[np.int64], missing: NDArray[np.bool_], portion: int) -> _Reads:
    """missing: whether each sample is absent from the cache."""
    starts = np.arange(0, len(sizes), portion)
    chosen = starts[np.linspace(0, len(starts) - 1, min(_SAMPLED, len(starts))).astype(int)]
    num = 0
    for start in chosen.tolist():
        rows = np.flatnonzero(missing[start : start + portion]) + start
        num += len(store.groups(rows)) if len(rows) else 0
    requests = float(missing.sum()) if portion == 1 else num * len(starts) / len(chosen)
    return _Reads(requests, float(sizes[missing].sum()), float(missing.sum()))
