"""Images per second of a source of batches, in several windows of time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import harmonic_mean

from imagenet_opt.measure.stats.intervals import Estimate, median_interval

NUM_WINDOWS = 6
"""The smallest number of windows whose median has an interval of 95 %: see `intervals.median_interval`."""
LATE = 4.0
"""A batch that takes this many times the median is late."""
MANY_PAUSES = 4
_MOST_DOUBT = 0.05
"""Largest share of time by which the wait of a run may be shorter than the wait of a longer run."""
LEAST_ROUNDS = 2
"""Batches that each worker must prepare for a rate, after its first batch."""


def rate_windows(stamps: Sequence[float], num_images: Sequence[int], *, multiple: int = 1) -> tuple[float, ...]:
    """Images per second in NUM_WINDOWS windows with equal numbers of batches, or in fewer windows if batches are few.

    stamps: arrival time of each batch in seconds; num_images: of each batch. The first batch starts the measurement and
    does not count. multiple: the number of batches of a window is a multiple of this, as all workers deliver at about
    the same time. Batches that fill no window are left out at the beginning. Raises ValueError for fewer than two
    batches.
    """
    num_batches = len(stamps) - 1
    if num_batches < 1:
        raise ValueError(f"{len(stamps)} batches give no rate")
    multiple = max(1, min(multiple, num_batches))
    num_windows = min(NUM_WINDOWS, num_batches // multiple)
    size = num_batches // (num_windows * multiple) * multiple
    edges = [num_batches - size * i for i in range(num_windows, -1, -1)]
    return tuple(sum(num_images[begin + 1 : end + 1]) / (stamps[end] - stamps[begin]) for begin, end in pairwise(edges))


def is_too_short(summary: Mapping[str, float]) -> bool:
    """Whether a run used mostly batches that were prepared before its rates were measured, so that it hardly waited.

    summary: the `throughput/` numbers of the run's summary; False without them.
    """
    busy = 1 - summary.get("throughput/data_wait_fraction", 0)
    ready, measured = (summary.get(f"throughput/{name}_batches", 0) for name in ("ready", "measured"))
    return busy * ready > _MOST_DOUBT * measured


def has_few_pauses(stamps: Sequence[float]) -> bool:
    """Whether some batches came late, but too few to estimate their share of the time."""
    gaps = sorted(end - begin for begin, end in pairwise(stamps))
    num_late = sum(gap > LATE * gaps[len(gaps) // 2] for gap in gaps)
    return 0 < num_late < MANY_PAUSES


def too_slow(stage: str, *, num_batches: int, batch_size: int, seconds: float, needed: int) -> str:
    """Message about a missing rate. stage: "storage" or "decoding"."""
    done = f"{num_batches} batches of {batch_size} images were ready after {seconds:.0f} s, {needed} are needed"
    return f"not measured: {stage} is too slow for the budget ({done}); raise --budget or lower data.batch_size"


@dataclass(frozen=True)
class Ceiling:
    """Rate of a single stage. windows: images per second in each window; facts: further measurements.

    in_bursts: batches come several at a time; the rate is then the harmonic mean of all windows (with equal numbers of
    images), not their median.
    """

    windows: tuple[float, ...]
    facts: Mapping[str, float] = field(default_factory=dict)
    in_bursts: bool = False

    @cached_property
    def estimate(self) -> Estimate:
        return median_interval(self.windows)

    @cached_property
    def images_per_second(self) -> float:
        return harmonic_mean(self.windows) if self.in_bursts else self.estimate.median
