"""Compares the first and second read of files, to detect a mount that fetches a file when it is first read."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from statistics import median

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
    """Median seconds of `num` requests at the first read, and of the same requests after `eviction`."""

    first_seconds: float
    second_seconds: float
    num: int
    eviction: Eviction

    @property
    def lazy(self) -> bool | None:
        """Whether the mount fetches files at the first read; None with few reads, or if memory may have answered."""
        is_unknown, is_slow = self.eviction.left.share is None, self.second_seconds >= NOT_MEMORY_SECONDS
        if self.num < _LEAST_TOUCHES or not (self.eviction.verified or (is_unknown and is_slow)):
            return None
        return self.first_seconds >= max(LAZY_SECONDS, LAZY_RATIO * self.second_seconds)

    @property
    def evidence(self) -> str:
        first, second = milliseconds(self.first_seconds), milliseconds(self.second_seconds)
        times = f"first touch {first}, second {second}, medians of {self.num} requests"
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
    evict(np.concatenate(chosen))
    first = _touch(read, chosen, until=time.monotonic() + seconds)
    again = chosen[: len(first)]
    eviction = evict(np.concatenate(again))
    second = _touch(read, again, until=float("inf"))
    return FirstTouch(median(first), median(second), len(first), eviction)


def _touch(read: Read, groups: Iterable[Indices], until: float) -> list[float]:
    """Seconds of the read of each group; the first group is read even after `until`."""
    seconds: list[float] = []
    for group in groups:
        began = time.monotonic()
        read(group)
        seconds.append(time.monotonic() - began)
        if time.monotonic() > until:
            break
    return seconds
