"""Finds the limit of a storage: latency or bandwidth, and whether it fetches a file when the file is first read."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

import numpy as np

from imagenet_opt.measure.storage.page_cache import Eviction
from imagenet_opt.measure.storage.read_depths import DepthReads, Indices, Read, milliseconds

SATURATED = 2.0
"""A rate is saturated when this many times the needed requests are in flight; half of the requests then only wait."""
BUSY_CPUS = 0.8
"""If this process keeps so many CPUs busy, the process is the limit, as only one Python thread runs at a time."""
LAZY_RATIO = 3.0
"""Smallest ratio of first to second reads of a lazy mount; a server's cache explains smaller ratios."""
LAZY_SECONDS = 0.02
"""Shortest first read of a lazy mount; a local disk seeks in 10 ms."""
NOT_MEMORY_SECONDS = 0.005
"""Requests that take this long did not come from this machine's memory."""
_NUM_TOUCHES, _LEAST_TOUCHES = 20, 5


@dataclass(frozen=True)
class StorageLimit:
    """kind: limit at the largest depth: "latency", "bandwidth", or "cpu" if this process cannot read faster.

    images_per_second, megabytes_per_second: highest measured rates. latency: seconds of a request at the smallest
    depth. knee: requests in flight needed for the highest rate at the latency of the smallest depth (Little's law). The
    knee is the minimum over all depths, as a stall of the storage makes a depth slower, never faster.
    """

    kind: str
    images_per_second: float
    megabytes_per_second: float
    latency: float
    knee: float
    evidence: str

    def at(self, depth: float) -> str:
        """The limit of a reader with `depth` requests in flight."""
        return self.kind if depth >= self.knee else "latency"


def storage_limit(curve: Sequence[DepthReads]) -> StorageLimit:
    """The limit is the latency if the rate grows with the requests in flight; else the bandwidth, or this process.

    Requests in flight are requests/s times latency. So either the rate grows with the depth at a constant latency, or
    the latency grows at a constant rate. A bandwidth limit in images/s may be a limit of bytes or of requests: compare
    megabytes_per_second with the specification of the storage.
    Raises ValueError for fewer than two depths.
    """
    if len(curve) < 2:
        raise ValueError(f"{len(curve)} depths cannot show the limit of a storage; at least two are needed")
    ordered = sorted(curve, key=lambda reads: reads.depth)
    shallowest, deepest = ordered[0], ordered[-1]
    answered = [reads for reads in ordered if reads.images_per_second > 0]
    best = max(answered, key=lambda reads: reads.images_per_second)
    knee = min(reads.depth * best.images_per_second / reads.images_per_second for reads in answered)
    kind = "latency"
    if deepest.depth >= SATURATED * knee:
        kind = "cpu" if best.cpus >= BUSY_CPUS else "bandwidth"
    return StorageLimit(
        kind,
        images_per_second=best.images_per_second,
        megabytes_per_second=best.megabytes_per_second,
        latency=shallowest.latency_median,
        knee=knee,
        evidence=_evidence(kind, answered[0], best, deepest, knee),
    )


def _evidence(kind: str, shallowest: DepthReads, best: DepthReads, deepest: DepthReads, knee: float) -> str:
    images, megabytes = float(f"{best.images_per_second:.4g}"), float(f"{best.megabytes_per_second:.3g}")
    rate = f"{images:,g} images/s = {megabytes:,g} MB/s"
    shortest, longest = milliseconds(shallowest.latency_median), milliseconds(deepest.latency_median)
    waits = f"an answer takes {shortest} with {shallowest.depth}, {longest} with {deepest.depth} in flight"
    if kind == "latency":
        times = best.images_per_second / shallowest.images_per_second
        return f"{best.depth} requests in flight read {times:.3g} times as fast as {shallowest.depth}, {rate}; {waits}"
    busy = f" and keep {best.cpus:.2g} CPUs of this process busy" if kind == "cpu" else ""
    return f"more than about {knee:.2g} requests in flight read no faster than {rate}{busy}; {waits}"


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
