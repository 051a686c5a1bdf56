"""Images per second of something that gives whole batches, in several stretches of time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import harmonic_mean

from imagenet_opt.measure.stats.intervals import Estimate, median_interval

NUM_WINDOWS = 6
"""The fewest whose median has an interval of 95 %: `statistics.median_interval`."""
LATE = 4.0
"""A batch is late that takes so many times what the median takes."""
MANY_PAUSES = 4
_MOST_DOUBT = 0.05
"""By so much of the time a run may have waited less than a longer one would."""
LEAST_ROUNDS = 2
"""Batches that each worker must have made for a rate, after its first."""


def rate_windows(stamps: Sequence[float], num_images: Sequence[int], *, multiple: int = 1) -> tuple[float, ...]:
    """Images per second in NUM_WINDOWS stretches of equally many batches, or in fewer where batches are few.

    stamps: seconds, when each batch was there; num_images: of each. The first batch begins the measurement and does
    not count. multiple: of so many batches is each stretch, as workers bring theirs at about the same time. Batches
    that fill no stretch are left out at the beginning. Raises ValueError for fewer than two batches.
    """
    num_batches = len(stamps) - 1
    if num_batches < 1:
        raise ValueError(f"{len(stamps)} batches, no rate")
    multiple = max(1, min(multiple, num_batches))
    num_windows = min(NUM_WINDOWS, num_batches // multiple)
    size = num_batches // (num_windows * multiple) * multiple
    edges = [num_batches - size * i for i in range(num_windows, -1, -1)]
    return tuple(sum(num_images[begin + 1 : end + 1]) / (stamps[end] - stamps[begin]) for begin, end in pairwise(edges))


def is_too_short(summary: Mapping[str, float]) -> bool:
    """Whether a run lived off batches that were made before its rates were measured, and so waited for hardly any.

    summary: the `throughput/` numbers of the run's summary; without them the answer is no.
    """
    busy = 1 - summary.get("throughput/data_wait_fraction", 0)
    ready, measured = (summary.get(f"throughput/{name}_batches", 0) for name in ("ready", "measured"))
    return busy * ready > _MOST_DOUBT * measured


def has_few_pauses(stamps: Sequence[float]) -> bool:
    """Whether some batches came late, but so few that their share of the time cannot be told yet."""
    gaps = sorted(end - begin for begin, end in pairwise(stamps))
    late = sum(gap > LATE * gaps[len(gaps) // 2] for gap in gaps)
    return 0 < late < MANY_PAUSES


def too_slow(what: str, *, num_batches: int, batch_size: int, seconds: float, needed: int) -> str:
    """Why there is no rate. what: "storage" or "decoding"."""
    made = f"{num_batches} batches of {batch_size} images were made in {seconds:.0f} s, {needed} are needed"
    return f"not measured: {what} too slow for the budget ({made}); raise --budget or lower data.batch_size"


@dataclass(frozen=True)
class Ceiling:
    """One stage alone. windows: images per second in each of several stretches; facts: what else was seen there.

    in_bursts: batches come several at a time, so that only all stretches together (of equally many images) tell the
    rate: it is then their harmonic mean, not their median.
    """

    windows: tuple[float, ...]
    facts: Mapping[str, float] = field(default_factory=dict)
    in_bursts: bool = False

    @property
    def estimate(self) -> Estimate:
        return median_interval(self.windows)

    @property
    def images_per_second(self) -> float:
        return harmonic_mean(self.windows) if self.in_bursts else self.estimate.median
