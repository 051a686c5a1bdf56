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
class Touches:
    """Median seconds of the first and the second read of files. lazy: whether the mount fetches files from a remote
    store at their first read; None if that is unknown. in_flight: requests of all workers when an epoch begins."""

    first_seconds: float
    second_seconds: float
    lazy: bool | None
    in_flight: int
    evidence: str


def touch_twice(
    read: Read,
    evict: Callable[[Indices], Eviction],
    groups: Iterable[Indices],
    *,
    in_flight: int = 1,
    seconds: float = 10.0,
) -> Touches:
    """Read groups that were never read before, evict them, and read them again, one group after the other.

    in_flight: for the result. seconds: time for first reads. The groups are also evicted before the first read, so that
    the kernel has the directories and inodes in memory at both reads, but not the data.
    Raises ValueError for no groups, and the errors of `read` and `evict`.
    """
    chosen = list(islice(groups, _NUM_TOUCHES))
    evict(np.concatenate(chosen))
    first = _touch(read, chosen, until=time.monotonic() + seconds)
    again = chosen[: len(first)]
    eviction = evict(np.concatenate(again))
    second = _touch(read, again, until=float("inf"))
    before, after, num = median(first), median(second), len(first)
    times = f"first touch {milliseconds(before)}, second {milliseconds(after)}, medians of {num} requests"
    evidence = f"{times}; eviction between them {eviction.evidence}"
    return Touches(before, after, is_lazy(before, after, num, eviction), in_flight, evidence)


def is_lazy(first_seconds: float, second_seconds: float, num: int, eviction: Eviction) -> bool | None:
    """Whether the mount fetches files at the first read; None with few reads, or if memory may have answered.

    first_seconds, second_seconds: medians of `num` requests, before and after `eviction`.
    """
    is_unknown, is_slow = eviction.left.share is None, second_seconds >= NOT_MEMORY_SECONDS
    if num < _LEAST_TOUCHES or not (eviction.verified or (is_unknown and is_slow)):
        return None
    return first_seconds >= max(LAZY_SECONDS, LAZY_RATIO * second_seconds)


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
