"""Selects samples of a split, and makes an index of them."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.remote_index import Part, RemoteIndex
from imagenet_opt.data.index.shard_index import ShardIndex

_PER_SAMPLE = ("labels", "shard_ids", "offsets", "sizes", "checksums", "etags")
"""Columns of all indexes with a number or a text for each sample."""


def spread_over_classes(labels: NDArray[np.int32], num: int, seed: int = 0) -> NDArray[np.int64]:
    """Rows of `num` random samples (or of all), ascending, with the same number from each class, or one more.
    Classes with too few samples leave their share to the others."""
    if num >= len(labels):
        return np.arange(len(labels))
    chance = np.random.default_rng(seed).random(len(labels))
    order = np.lexsort((chance, labels))
    starts = np.searchsorted(labels[order], labels[order])
    place_in_class = np.arange(len(labels)) - starts
    chosen = order[np.lexsort((chance[order], place_in_class))[:num]]
    return np.sort(chosen)


def subset(index: FileIndex | ShardIndex, rows: NDArray[np.int64]) -> FileIndex | ShardIndex:
    """An index of these rows, in memory; rows may repeat."""
    lengths = np.diff(index.name_offsets)[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.arange(offsets[-1]) + np.repeat(index.name_offsets[rows] - offsets[:-1], lengths)
    names = np.asarray(index.names[places])
    columns = [name for name in _PER_SAMPLE if hasattr(index, name)]
    chosen = {column: getattr(index, column)[rows] for column in columns}
    is_part: dict[str, Any] = {}
    if isinstance(index, RemoteIndex):
        whole = index if index.part is None else index.part.whole
        place = rows if index.part is None else index.part.rows[rows]
        is_part = {"is_whole": False, "part": Part(whole, place) if whole.is_whole else None}
    return replace(index, names=names, name_offsets=offsets, **chosen, **is_part)
