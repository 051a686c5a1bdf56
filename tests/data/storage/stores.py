"""Stores for tests, and a reader of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.data.storage.store import Indices


class Numbers:
    """Sample i is the text of i; `each` is called before it is read."""

    def __init__(self, each: Callable[[int], None] = lambda index: None, group: int = 1) -> None:
        self.each = each
        self.group = group
        self.read: list[int] = []

    def __len__(self) -> int:
        return 10_000

    def groups(self, indices: Indices) -> list[Indices]:
        return [np.arange(i, min(i + self.group, len(indices))) for i in range(0, len(indices), self.group)]

    def read_many(self, indices: Indices) -> list[bytes]:
        for index in indices.tolist():
            self.each(index)
            self.read.append(index)
        return [str(index).encode() for index in indices.tolist()]

    def name(self, index: int) -> str:
        return f"/proc/sample{index}"


def reading(
    store: Numbers, *, reads_in_flight: int | str = "auto", timeout_seconds: float = 60.0, **options: int
) -> ReadAhead:
    return ReadAhead(store, reads_in_flight=reads_in_flight, timeout_seconds=timeout_seconds, **options)


def batch(step: int, size: int = 8) -> Indices:
    return np.arange(step * size, (step + 1) * size)[::-1].copy()


def texts(indices: Indices) -> list[bytes]:
    return [str(i).encode() for i in indices.tolist()]


class Listed:
    """Sample i is encoded[i]. Each read sample adds its number to a file, from all threads and processes; `each` is
    called before that. Two neighbours of a request are one group."""

    def __init__(self, encoded: list[bytes], file: Path, each: Callable[[int], None] = int) -> None:
        self.encoded, self.file, self.each = encoded, file, each
        file.touch()

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def sizes(self) -> Indices:
        return np.array([len(sample) for sample in self.encoded])

    @property
    def read(self) -> list[int]:
        """The samples that were read so far, in order."""
        return list(map(int, self.file.read_text().split()))

    def groups(self, indices: Indices) -> list[Indices]:
        return [np.arange(i, min(i + 2, len(indices))) for i in range(0, len(indices), 2)]

    def read_many(self, indices: Indices) -> list[bytes]:
        for index in indices.tolist():
            self.each(index)
            with self.file.open("a") as file:
                file.write(f"{index}\n")
        return [self.encoded[index] for index in indices.tolist()]

    def name(self, index: int) -> str:
        return f"s3://bucket/{index}"
