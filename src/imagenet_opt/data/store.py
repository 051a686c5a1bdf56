"""Where the bytes of samples come from."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index import FileIndex
from imagenet_opt.errors import BadSample

_READS_IN_FLIGHT = 16


class Store(Protocol):
    """Gives the encoded bytes of samples by index."""

    def read_many(self, indices: NDArray[np.int64]) -> list[bytes]:
        """Bytes of each sample, in the order of `indices`."""

    def name(self, index: int) -> str:
        """What to call a sample in messages: its path."""


class FolderStore:
    """A folder tree of image files, several read at once since shared storage answers slowly, not seldom."""

    def __init__(self, index: FileIndex) -> None:
        self.index = index
        self._threads: ThreadPoolExecutor | None = None
        self._process = 0

    def read_many(self, indices: NDArray[np.int64]) -> list[bytes]:
        """Raises BadSample with the file's path and the system's reason."""
        if self._threads is None or self._process != os.getpid():  # threads do not survive the fork into a worker
            self._threads, self._process = ThreadPoolExecutor(_READS_IN_FLIGHT), os.getpid()
        return list(self._threads.map(self._read, indices.tolist()))

    def name(self, index: int) -> str:
        return self.index.path(index)

    def _read(self, index: int) -> bytes:
        path = self.index.path(index)
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise BadSample(
                f"cannot read {path}: {error.strerror}; restore the file or remove it (data.root)"
            ) from error
