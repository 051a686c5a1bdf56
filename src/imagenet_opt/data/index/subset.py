"""Makes an index of some samples of another index."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardIndex


def subset(index: FileIndex | ShardIndex, rows: NDArray[np.int64]) -> FileIndex | ShardIndex:
    """An index of these rows, in memory; rows may repeat."""
    names, offsets = _names(index.names, index.name_offsets, rows)
    if isinstance(index, FileIndex):
        return FileIndex(index.folder, index.classes, index.labels[rows], names, offsets)
    return replace(
        index,
        labels=index.labels[rows],
        shard_ids=index.shard_ids[rows],
        offsets=index.offsets[rows],
        sizes=index.sizes[rows],
        checksums=index.checksums[rows],
        names=names,
        name_offsets=offsets,
    )


def _names(
    names: NDArray[np.uint8], offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    lengths = np.diff(offsets)[rows]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.arange(ends[-1]) + np.repeat(offsets[rows] - ends[:-1], lengths)
    return np.asarray(names[places]), ends
