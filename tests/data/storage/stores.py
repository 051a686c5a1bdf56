"""Stores for tests, and a reader of them."""

from collections.abc import Callable, Sequence

import numpy as np

from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.data.storage.store import Indices


class Samples:
    """Sample i is encoded[i], or the text of i; `each` is called before it is read. `group` neighbours of a request are
    read together. read: the samples that were read so far, in order."""

    def __init__(
        self, each: Callable[[int], object] = int, group: int = 1, encoded: Sequence[bytes] | None = None
    ) -> None:
        self.each, self.group = each, group
        self.encoded = [str(i).encode() for i in range(10_000)] if encoded is None else encoded
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def sizes(self) -> Indices:
        return np.array([len(sample) for sample in self.encoded])

    def groups(self, indices: Indices) -> list[Indices]:
        return [np.arange(i, min(i + self.group, len(indices))) for i in range(0, len(indices), self.group)]

    def read_many(self, indices: Indices) -> list[bytes]:
        for index in indices.tolist():
            self.each(index)
            self.read.append(index)
        return [self.encoded[index] for index in indices.tolist()]

    def name(self, index: int) -> str:
        return f"/proc/sample{index}"


def reading(
    store: Samples, *, reads_in_flight: int | str = "auto", timeout_seconds: float = 60.0, **options: int
) -> ReadAhead:
    return ReadAhead(store, reads_in_flight=reads_in_flight, timeout_seconds=timeout_seconds, **options)


def batch(step: int, size: int = 8) -> Indices:
    return np.arange(step * size, (step + 1) * size)[::-1].copy()


def texts(indices: Indices) -> list[bytes]:
    return [str(i).encode() for i in indices.tolist()]
