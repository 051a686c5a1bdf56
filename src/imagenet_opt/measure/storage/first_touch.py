"""Compares the first and second read of files, to detect a mount that fetches a file when it is first read."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from imagenet_opt.measure.storage.page_cache import Eviction
from imagenet_opt.measure.storage.read_depths import Indices, Read, milliseconds

LAZY_RATIO = 3.0
"""Smallest ratio of first to second reads of a lazy mount; a server's cache explains smaller ratios."""
LAZY_SECONDS = 0.02
"""Shortest first read of a lazy mount; a local disk seeks in 10 ms."""
NOT_MEMORY_SECONDS = 0.005
"""Requests that take this long did not come from this machine's memory."""
_NUM_TOUCHES, _LEAST_TOUCHES = 20, 5


@dataclass(frozen=True)
class FirstTouch:
    """Seconds of requests at the first read, and of the same requests after eviction.

    eviction: result of the eviction before the second read.
    """

    first_seconds: tuple[float, ...]
    second_seconds: tuple[float, ...]
    eviction: Eviction

    @property
    def ratio(self) -> float:
        return float(np.median(self.first_seconds) / np.median(self.second_seconds))

    @property
    def lazy(self) -> bool | None:
        """Whether the mount fetches files at the first read; None with few reads, or if memory may have answered."""
        second = float(np.median(self.second_seconds))
        was_read = self.eviction.verified or (self.eviction.unknown and second >= NOT_MEMORY_SECONDS)
        if len(self.first_seconds) < _LEAST_TOUCHES or not was_read:
            return None
        return self.ratio >= LAZY_RATIO and float(np.median(self.first_seconds)) >= LAZY_SECONDS

    @property
    def evidence(self) -> str:
        first, second = (
            milliseconds(float(np.median(seconds))) for seconds in (self.first_seconds, self.second_seconds)
        )
        times = f"first touch {first}, second {second}, medians of {len(self.first_seconds)} requests"
        return f"{times}; eviction between them {self.eviction.evidence}"


def touch_twice(
    read: Read, evict: Callable[[Indices], Eviction], groups: Iterable[Indices], *, seconds: float = 10.0
) -> FirstTouch:
    """Read groups that were never read before, evict them, and read them again, one group after the other.

    seconds: time for first reads. The groups are also evicted before the first read, so that the kernel has
    the directories and inodes in memory at both reads, but not the data.
    Raises ValueError for no groups, and the errors of `read` and `evict`.
    """
    chosen = list(islice(groups, _NUM_TOUCHES))
    if not chosen:
        raise ValueError("no groups to touch")
    indices = np.concatenate(chosen)
    evict(indices)
    until = time.monotonic() + seconds
    first = _touch(read, chosen, until)
    again = chosen[: len(first)]
    eviction = evict(np.concatenate(again))
    return FirstTouch(first, _touch(read, again, until=float("inf")), eviction)


def _touch(read: Read, groups: Iterable[Indices], until: float) -> tuple[float, ...]:
    """Seconds of the read of each group; the first group is read even after `until`."""
    seconds: list[float] = []
    for group in groups:
        began = time.monotonic()
        read(group)
        seconds.append(time.monotonic() - began)
        if time.monotonic() > until:
            break
    return tuple(seconds)
