"""The files of a split, by number, with their status on the file system."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.split import Split

_STAT_THREADS = 64
_CHUNK = 512
_HELD_BLOCKS = 8
"""A file of more blocks of 512 bytes occupies more than one block if its data is on the file system."""


@dataclass(frozen=True)
class SplitFiles:
    folder: Path
    num: int
    path: Callable[[int], str]


@dataclass(frozen=True)
class Status:
    """stat of each file: size in bytes, or -1 if stat fails; occupied blocks of 512 bytes."""

    sizes: NDArray[np.int64]
    blocks: NDArray[np.int64]

    @property
    def without_data(self) -> NDArray[np.bool_]:
        """Whether a file may have no data on the file system: a released file, or one too small to tell."""
        without_data: NDArray[np.bool_] = (self.sizes != 0) & (self.blocks <= 1)
        return without_data

    @property
    def released(self) -> NDArray[np.bool_]:
        """Whether Lustre has a file's name and size without its data. Lustre reports 0 blocks for such a file, or 1, so
        that no program mistakes the file for a hole."""
        return (self.sizes > 512 * _HELD_BLOCKS) & (self.blocks <= 1)


def files_of(split: Split) -> SplitFiles:
    """The files of a split in a folder."""
    if split.containers:
        paths = [os.path.join(split.place, name) for name in split.containers]
        return SplitFiles(split.folder, len(paths), paths.__getitem__)
    return SplitFiles(split.folder, len(split), split.path)


def status_of(files: SplitFiles, on_progress: Callable[[int, int], None] = lambda done, total: None) -> Status:
    """Call stat for every file, in many threads. on_progress: called with (finished files, all files)."""

    def of_chunk(chunk: range) -> NDArray[np.int64]:
        return np.array([_size_and_blocks(files.path(i)) for i in chunk], np.int64).T

    status = np.empty((2, files.num), np.int64)
    threads = ThreadPoolExecutor(_STAT_THREADS)
    try:
        chunks = [range(i, min(i + _CHUNK, files.num)) for i in range(0, files.num, _CHUNK)]
        for chunk, sizes in zip(chunks, threads.map(of_chunk, chunks), strict=True):
            status[:, chunk.start : chunk.stop] = sizes
            on_progress(chunk.stop, files.num)
    finally:
        threads.shutdown(cancel_futures=True)
    return Status(*status)


def _size_and_blocks(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return -1, 0
    return status.st_size, status.st_blocks
