"""First against second touch of files: whether a mount fetches them from elsewhere when they are first read."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from imagenet_opt.measure.storage.page_cache import Eviction
from imagenet_opt.measure.storage.read_depths import Indices, Read

LAZY_RATIO = 3.0
"""First touches that take so many times as long as second ones: less is what the caches of a server bring."""
LAZY_SECONDS = 0.02
"""First touches that take so long: a disk seeks in 10 ms, without anything behind the mount."""
NOT_MEMORY_SECONDS = 0.005
"""Requests that take so long were not answered from this machine's memory."""
_NUM_TOUCHES, _LEAST_TOUCHES = 20, 5


@dataclass(frozen=True)
class FirstTouch:
    """Seconds of requests at their first touch, and of the same ones once they were evicted again.

    eviction: of those evicted before the second.
    """

    first_seconds: tuple[float, ...]
    second_seconds: tuple[float, ...]
    eviction: Eviction

    @property
    def ratio(self) -> float:
        return float(np.median(self.first_seconds) / np.median(self.second_seconds))

    @property
    def lazy(self) -> bool | None:
        """Whether the files come from behind the mount; None where there were few, or perhaps from memory at last."""
        again = float(np.median(self.second_seconds))
        was_read = self.eviction.verified or (self.eviction.unknown and again >= NOT_MEMORY_SECONDS)
        if len(self.first_seconds) < _LEAST_TOUCHES or not was_read:
            return None
        return self.ratio >= LAZY_RATIO and float(np.median(self.first_seconds)) >= LAZY_SECONDS

    @property
    def evidence(self) -> str:
        first, second = (1000 * np.median(seconds) for seconds in (self.first_seconds, self.second_seconds))
        times = f"first touch {first:.3g} ms, second {second:.3g} ms, medians of {len(self.first_seconds)} requests"
        return f"{times}; eviction between them {self.eviction.evidence}"


def touch_twice(
    read: Read, evict: Callable[[Indices], Eviction], groups: Iterable[Indices], *, seconds: float = 10.0
) -> FirstTouch:
    """Reads groups that were never read before, evicts them, reads them again; one after the other.

    seconds: after which no further ones are read for the first time. They are evicted before the first touch as well:
    then directories and inodes are known to the kernel both times, and only the data is not.
    Raises ValueError for no groups; what `read` and `evict` raise.
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
    """Seconds of each; of one at least."""
    found: list[float] = []
    for group in groups:
        began = time.monotonic()
        read(group)
        found.append(time.monotonic() - began)
        if time.monotonic() > until:
            break
    return tuple(found)
