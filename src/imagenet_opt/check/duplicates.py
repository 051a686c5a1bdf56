"""Finds duplicate images by their bytes: validation images that are also in train, or in val with another label."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.errors import BadSample

_READS_IN_FLIGHT, _CHUNK = 64, 512
Rows = NDArray[np.int64]
Keys = NDArray[np.uint64]
"""Size in the upper half, CRC-32 of the content in the lower half. Two files of one size collide with probability
1/4e9."""


@dataclass(frozen=True)
class Duplicate:
    """A validation sample and another sample with the same bytes. other_split: 0 for train, 1 for val."""

    row: int
    other_split: int
    other_row: int


def find_twins(
    splits: Sequence[FileIndex | ShardIndex],
    sizes: Sequence[Rows],
    rows: Rows,
    loading: LoaderOptions,
    on_progress: Callable[[int, int], None],
) -> list[Duplicate]:
    """For each of `rows` of the second split, every other sample of both splits with the same bytes.

    sizes: sizes of all samples, per split; only samples that share their size with another one are read. Shards are not
    read, since their index has checksums. Samples that cannot be read have no duplicates.
    Raises StorageFailed, ReadTimeout.
    """
    wanted = np.unique(sizes[1][rows])
    values, counts = np.unique(np.concatenate(sizes), return_counts=True)
    shared = np.intersect1d(wanted[wanted > 0], values[counts > 1])
    candidates = [np.flatnonzero(np.isin(of_split, shared)) for of_split in sizes]
    total = sum(len(files) for index, files in zip(splits, candidates, strict=True) if isinstance(index, FileIndex))
    done = 0

    def advance(num: int) -> None:
        nonlocal done
        done += num
        on_progress(done, total)

    keys = [_keys(*split, loading, advance) for split in zip(splits, sizes, candidates, strict=True)]
    return _matches(candidates, keys, rows)


def _keys(
    index: FileIndex | ShardIndex, sizes: Rows, rows: Rows, loading: LoaderOptions, advance: Callable[[int], None]
) -> Keys:
    """Keys of the samples `rows`; 0 for a sample that cannot be read."""
    if isinstance(index, ShardIndex):
        return (sizes[rows].astype(np.uint64) << np.uint64(32)) | index.checksums[rows].astype(np.uint64)
    patience = loading.read_timeout
    reader = ReadAhead(store_of(index, loading), reads_in_flight=_READS_IN_FLIGHT, timeout_seconds=patience)
    keys = np.zeros(len(rows), np.uint64)
    for first in range(0, len(rows), _CHUNK):
        chunk = rows[first : first + _CHUNK]
        keys[first : first + _CHUNK] = [_key_of(sample) for sample in reader.read_unplanned(chunk)]
        advance(len(chunk))
    return keys


def _key_of(sample: bytes | BadSample) -> int:
    return 0 if isinstance(sample, BadSample) else len(sample) << 32 | zlib.crc32(sample)


def _matches(candidates: Sequence[Rows], keys: Sequence[Keys], rows: Rows) -> list[Duplicate]:
    compared = np.isin(candidates[1], rows) & (keys[1] != 0)
    matches = []
    for split, (others, other_keys) in enumerate(zip(candidates, keys, strict=True)):
        order = np.argsort(other_keys, kind="stable")
        first = np.searchsorted(other_keys[order], keys[1][compared], "left")
        end = np.searchsorted(other_keys[order], keys[1][compared], "right")
        for row, low, high in zip(candidates[1][compared].tolist(), first.tolist(), end.tolist(), strict=True):
            twins = others[order[low:high]].tolist()
            matches += [Duplicate(row, split, other) for other in twins if (split, other) != (1, row)]
    return matches
