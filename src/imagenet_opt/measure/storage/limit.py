"""What bounds reads from a storage, told from rates and latencies at several numbers of requests in flight."""

from collections.abc import Sequence
from dataclasses import dataclass

from imagenet_opt.measure.storage.read_depths import DepthReads

SATURATED = 2.0
"""Requests in flight over those that would do, from which a rate is called saturated: half of them only wait."""
BUSY_CPUS = 0.8
"""CPUs kept busy by one process of Python threads, from which that process is the limit: one runs at a time."""


@dataclass(frozen=True)
class StorageLimit:
    """kind: with the most requests in flight: "latency", "bandwidth", or "cpu" where this process reads no faster.

    images_per_second, megabytes_per_second: the most that was seen. latency: seconds of a request alone.
    knee: requests in flight which bring that most, if each is answered as soon as with the fewest (Little's law); the
    least that any of the depths tells, as a storage that stalls for a moment makes one of them slower, not faster.
    """

    kind: str
    images_per_second: float
    megabytes_per_second: float
    latency: float
    knee: float
    evidence: str

    def at(self, depth: float) -> str:
        """The limit of a reader that has so many requests in flight."""
        return self.kind if depth >= self.knee else "latency"


def storage_limit(curve: Sequence[DepthReads]) -> StorageLimit:
    """Latency where more in flight bring nearly that much more; else bandwidth, or this process.

    Requests/s times latency is what is in flight. So either the rate grows with the depth and the latency stays, or the
    rate stays and the latency grows. A bandwidth in images/s looks the same whether it is one of bytes or of requests:
    then compare megabytes_per_second with what the storage is sold for.
    Raises ValueError for fewer than two depths.
    """
    if len(curve) < 2:
        raise ValueError(f"{len(curve)} depths tell nothing about what bounds the storage; at least two do")
    ordered = sorted(curve, key=lambda reads: reads.depth)
    alone, deepest = ordered[0], ordered[-1]
    answered = [one for one in ordered if one.images_per_second > 0]
    best = max(answered, key=lambda reads: reads.images_per_second)
    knee = min(one.depth * best.images_per_second / one.images_per_second for one in answered)
    kind = "latency"
    if deepest.depth >= SATURATED * knee:
        kind = "cpu" if best.cpus >= BUSY_CPUS else "bandwidth"
    return StorageLimit(
        kind,
        images_per_second=best.images_per_second,
        megabytes_per_second=best.megabytes_per_second,
        latency=alone.latency_median,
        knee=knee,
        evidence=_evidence(kind, alone, best, deepest, knee),
    )


def _evidence(kind: str, alone: DepthReads, best: DepthReads, deepest: DepthReads, knee: float) -> str:
    rate = f"{best.images_per_second:.4g} images/s = {best.megabytes_per_second:.3g} MB/s"
    latencies = f"{1000 * alone.latency_median:.3g} ms with {alone.depth}, {1000 * deepest.latency_median:.3g} ms"
    waits = f"an answer takes {latencies} with {deepest.depth} in flight"
    if kind == "latency":
        times = best.images_per_second / alone.images_per_second
        return f"{best.depth} requests in flight bring {times:.3g} times as much as {alone.depth}, {rate}; {waits}"
    busy = f" and keep {best.cpus:.2g} CPUs of this process busy" if kind == "cpu" else ""
    return f"more than about {knee:.2g} requests in flight bring no more than {rate}{busy}; {waits}"


def mixed_rate(cached_share: float, cached_rate: float, cold_rate: float) -> float:
    """Images/s where a share of them is read from memory: times add up, not rates."""
    return 1 / (cached_share / cached_rate + (1 - cached_share) / cold_rate)
