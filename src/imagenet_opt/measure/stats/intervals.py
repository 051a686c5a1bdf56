"""Medians with intervals that assume nothing about how measured values scatter."""

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import NamedTuple, Protocol

CONFIDENCE = 0.95
LEAST_COVERAGE = 0.9
"""An interval that holds the median less surely than that, as of four values, says nothing."""


class Estimate(NamedTuple):
    """The median of `num` values; it is between low and high with probability `coverage`."""

    median: float
    low: float
    high: float
    coverage: float
    num: int


def median_interval(values: Sequence[float]) -> Estimate:
    """The median between two of the values, the nearest pair of order statistics that has CONFIDENCE.

    Fewer than six values cannot reach 95 %: then the least and the most, with the coverage that these have (one value
    alone has none). Right for independent values of any distribution. Source: the order-statistic interval for a
    quantile, Hahn and Meeker, Statistical Intervals, 1991, chapter 5. Raises ValueError for no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values, no median")
    rank = 0
    while rank + 1 < (len(ordered) + 1) / 2 and coverage(len(ordered), rank + 1) >= CONFIDENCE:
        rank += 1
    return Estimate(median(ordered), ordered[rank], ordered[-1 - rank], coverage(len(ordered), rank), len(ordered))


def coverage(num: int, left_out: int) -> float:
    """Probability that the true median is between the values that remain when so many are left out at either end."""
    return 1 - 2 * sum(comb(num, i) for i in range(left_out + 1)) / (1 << num)


class Interval(Protocol):
    """From low to high, right with probability `coverage`."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def coverage(self) -> float: ...
