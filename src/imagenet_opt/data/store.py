"""Where the bytes of samples come from."""

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index import Split
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
    """A folder tree of image files, one request each."""

    def __init__(self, index: Split) -> None:
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    def groups(self, indices: Indices) -> list[Indices]:
        return list(np.arange(len(indices))[:, None])

    def read_many(self, indices: Indices) -> list[bytes]:
        return [_read_file(self.index.path(i)) for i in indices.tolist()]

    def name(self, index: int) -> str:
        return printable(os.fsencode(self.index.path(index)).decode(errors="backslashreplace"))


def _read_file(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()
