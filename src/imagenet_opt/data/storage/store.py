"""Where the bytes of samples come from."""

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.folder_index import Split
from imagenet_opt.errors import printable

Indices = NDArray[np.int64]


class Store(Protocol):
    """Gives the encoded bytes of samples by index. Retries, timeouts and concurrency are the reader's."""

    def __len__(self) -> int:
        """How many samples there are."""

    def groups(self, indices: Indices) -> list[Indices]:
        """Which samples one request reads together: places in `indices`."""

    def read_many(self, indices: Indices) -> list[bytes]:
        """Bytes of each sample, in the order of `indices`; may be called by many threads. Raises OSError."""

    def name(self, index: int) -> str:
        """What to call a sample in messages: its path, escaped where a log line could not hold it."""


class FolderStore:
    """A folder tree of image files, one request each.

    drop_pages: drop each file from the page cache once it is read, so that the next read comes from the storage again.
    """

    def __init__(self, index: Split, *, drop_pages: bool = False) -> None:
        self.index = index
        self.drop_pages = drop_pages

    def __len__(self) -> int:
        return len(self.index)

    def groups(self, indices: Indices) -> list[Indices]:
        return list(np.arange(len(indices))[:, None])

    def read_many(self, indices: Indices) -> list[bytes]:
        return [_read_file(self.index.path(i), drop_pages=self.drop_pages) for i in indices.tolist()]

    def name(self, index: int) -> str:
        return printable(os.fsencode(self.index.path(index)).decode(errors="backslashreplace"))


def _read_file(path: str, *, drop_pages: bool) -> bytes:
    with open(path, "rb", buffering=0) as file:
        encoded = file.readall()
        if drop_pages:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return encoded
