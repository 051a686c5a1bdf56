"""A store of numbers, and a reader of it."""

from collections.abc import Callable

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
