"""Reads the images of one split for packing, from files or parts of tar files, on storage that may fail."""

import errno
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.files import subset
from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.object_index import ObjectIndex
from imagenet_opt.data.storage.retry import TRANSIENT, is_out, retry_transient
from imagenet_opt.data.storage.store import ObjectStore
from imagenet_opt.errors import PackStopped, StorageForbidden
from imagenet_opt.regular_file import open_regular, read_file, read_part

_THREADS = 32
PATIENCE = 60.0
"""Seconds for which reads of a file are retried."""


@dataclass(frozen=True)
class Source:
    """Images of one split. With starts and sizes, int64 (n,), image i is a part of <class>.tar; otherwise a file, or an
    object of an ObjectIndex.

    nested: whether file names begin with the class.
    """

    files: FileIndex
    nested: bool
    starts: NDArray[np.int64] | None = None
    sizes: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.files)

    def name(self, i: int) -> str:
        """Name of image i as class/file."""
        name = os.fsdecode(self._file(i))
        return name if self.nested else f"{self.files.classes[self.files.labels[i]]}/{name}"

    def place(self, i: int) -> str:
        """Path of image i, for messages."""
        if self.starts is None:
            return self.files.path(i)
        return f"{self._archive(i)}: {os.fsdecode(self._file(i))}"

    def read(self, i: int) -> bytes:
        """Read image i with retries. Raises OSError if this file fails, PackStopped if other files fail as well."""
        try:
            return retry_transient(lambda: self.read_once(i), self.place(i), PATIENCE)
        except OSError as error:
            self._check_storage(error, i)
            raise
        except StorageForbidden as error:
            if is_out(i, len(self), self.read_once):
                raise
            raise PermissionError(errno.EACCES, str(error)) from error

    def read_once(self, i: int) -> bytes:
        if self._objects is not None:
            return self._objects.read_many(np.array([i]))[0]
        if self.starts is None or self.sizes is None:
            return read_file(self.files.path(i))
        with open(self._archive(i), "rb", opener=open_regular) as file:
            return read_part(file.fileno(), int(self.starts[i]), int(self.sizes[i]))

    def num_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sizes of these files; -1 for a file whose size cannot be read. Raises PackStopped if the storage fails."""
        sizes = self.files.sizes if isinstance(self.files, ObjectIndex) else self.sizes
        if sizes is not None:
            return sizes[indices]
        with ThreadPoolExecutor(_THREADS) as threads:
            return np.fromiter(threads.map(self._size, indices.tolist()), np.int64)

    def take(self, indices: NDArray[np.int64]) -> "Source":
        """The source with only these images, to send to another process."""
        files: Any = subset(self.files, indices)
        columns = [None if column is None else column[indices] for column in (self.starts, self.sizes)]
        return Source(files, self.nested, *columns)

    @cached_property
    def _objects(self) -> ObjectStore | None:
        return ObjectStore(self.files) if isinstance(self.files, ObjectIndex) else None

    def _file(self, i: int) -> bytes:
        return self.files.names[self.files.name_offsets[i] : self.files.name_offsets[i + 1]].tobytes()

    def _archive(self, i: int) -> str:
        return os.path.join(self.files.folder, f"{self.files.classes[self.files.labels[i]]}.tar")

    def _size(self, i: int) -> int:
        path = self.files.path(i)
        try:
            return retry_transient(lambda: os.stat(path), path, PATIENCE).st_size
        except OSError as error:
            self._check_storage(error, i)
            return -1

    def _check_storage(self, error: OSError, i: int) -> None:
        """Raises PackStopped if the error of file i comes from the storage."""
        if self._objects is None and not os.path.isdir(self.files.folder):
            failure = f"{self.files.folder} has disappeared"
        elif error.errno in TRANSIENT and is_out(i, len(self), self.read_once):
            failure = f"{self.place(i)} and other files cannot be read"
        else:
            return
        raise PackStopped(
            f"{failure} ({error.strerror}); reconnect the storage (data.root), and run the same command again: "
            "it resumes where it stopped"
        ) from error


def file_index(folder: Path, classes: tuple[str, ...], labels: NDArray[np.int32], names: Iterable[bytes]) -> FileIndex:
    names = list(names)
    flat = np.frombuffer(b"".join(names), dtype=np.uint8)
    return FileIndex(folder, classes, labels, flat, np.cumsum([0, *map(len, names)], dtype=np.int64))
