"""Reads the images of a split for packing: files, objects, or parts of tar files."""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.object_index import ObjectIndex
from imagenet_opt.data.storage.object_store import ObjectStore
from imagenet_opt.data.storage.read_pool import ReadPool, ReadTask, Sample
from imagenet_opt.data.storage.retry import TRANSIENT, retry_transient
from imagenet_opt.data.storage.store import FolderStore, Indices
from imagenet_opt.errors import BadSample, StorageFailed
from imagenet_opt.regular_file import open_regular, read_part

READ_TIMEOUT = 120.0
"""Default of data.read_timeout, in seconds. Reads that fail are repeated for half of this time."""
_READS_IN_FLIGHT, _STATS_IN_FLIGHT = 16, 32


@dataclass(frozen=True)
class ArchiveIndex(FileIndex):
    """Images in the tar files <class>.tar of a folder. offsets, sizes: int64 (num_samples,), place of each in its tar
    file, in bytes. names: those in the tar files."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def archive(self, i: int) -> str:
        return os.path.join(self.folder, f"{self.classes[self.labels[i]]}.tar")

    def path(self, i: int) -> str:
        return f"{self.archive(i)}: {_file(self, i)}"


class _ArchiveStore(FolderStore):
    index: ArchiveIndex

    def read_many(self, indices: Indices) -> list[bytes]:
        return [self._part(i) for i in indices.tolist()]

    def _part(self, i: int) -> bytes:
        with open(self.index.archive(i), "rb", opener=open_regular) as file:
            return read_part(file.fileno(), int(self.index.offsets[i]), int(self.index.sizes[i]))


def read_images(index: FileIndex, read_timeout: float) -> Iterator[Sample]:
    """The images in order; several are read at a time. One that cannot be read is a BadSample.

    Raises StorageFailed, ReadTimeout if the storage fails.
    """
    is_remote = isinstance(index, ObjectIndex)
    kind = ObjectStore if is_remote else _ArchiveStore if isinstance(index, ArchiveIndex) else FolderStore
    pool = ReadPool(kind(index), timeout_seconds=read_timeout)  # type: ignore[arg-type]
    running: deque[ReadTask] = deque()

    def finish() -> Sample:
        ((sample,),) = pool.answer(running.popleft())
        if isinstance(sample, BadSample) and not is_remote and not os.path.isdir(index.folder):
            raise StorageFailed(
                f"{index.folder} has disappeared; reconnect the storage (data.root), and run the same command again: "
                "it resumes where it stopped"
            )
        return sample

    for row in np.arange(len(index))[:, None]:
        running.append(pool.start([np.array([0])], [row], _READS_IN_FLIGHT, stop_when_slow=False))
        if len(running) > _READS_IN_FLIGHT:
            yield finish()
    while running:
        yield finish()


def name_of(index: FileIndex, i: int) -> str:
    """Name of image i as class/file."""
    name, folder = _file(index, i), index.classes[index.labels[i]]
    return name if name.startswith(f"{folder}/") else f"{folder}/{name}"


def sizes_of(index: FileIndex, rows: Indices, read_timeout: float) -> NDArray[np.int64]:
    """Bytes of these images; -1 for a file whose size cannot be read. Raises StorageFailed."""
    if isinstance(index, ObjectIndex | ArchiveIndex):
        return index.sizes[rows]

    def size(i: int) -> int:
        path = index.path(i)
        try:
            return retry_transient(lambda: os.stat(path), path, read_timeout / 2).st_size
        except OSError as error:
            if error.errno not in TRANSIENT:
                return -1
            raise StorageFailed(
                f"{path}: {error.strerror}; check that ls works on the mount (data.root), then run the same command "
                "again"
            ) from error

    with ThreadPoolExecutor(_STATS_IN_FLIGHT) as threads:
        return np.fromiter(threads.map(size, rows.tolist()), np.int64)


def _file(index: FileIndex, i: int) -> str:
    return os.fsdecode(index.names[index.name_offsets[i] : index.name_offsets[i + 1]].tobytes())
