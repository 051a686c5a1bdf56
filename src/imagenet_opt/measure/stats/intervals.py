"""Intervals of medians, which assume no distribution of the measured values, and of shares."""

from collections.abc import Sequence
from math import comb, sqrt
from statistics import NormalDist, median
from typing import NamedTuple

CONFIDENCE = 0.95
LEAST_COVERAGE = 0.9
"""Intervals with less coverage, such as those of four values, are not used."""


class Estimate(NamedTuple):
    """The median of `num` values; the true median is between low and high with probability `coverage`."""

    median: float
    low: float
    high: float
    coverage: float
    num: int


def median_interval(values: Sequence[float]) -> Estimate:
    """The median, and the closest pair of order statistics around it with CONFIDENCE.

    With fewer than six values no pair reaches 95 %; the interval then goes from the minimum to the maximum and has a
    smaller coverage (0 for a single value). Valid for independent values of any distribution. Source: the
    order-statistic interval for a quantile, Hahn and Meeker, Statistical Intervals, 1991, chapter 5. Raises ValueError
    for no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values, no median")
    rank = 0
    while rank + 1 < (len(ordered) + 1) / 2 and coverage(len(ordered), rank + 1) >= CONFIDENCE:
        rank += 1
    return Estimate(median(ordered), ordered[rank], ordered[-1 - rank], coverage(len(ordered), rank), len(ordered))


def coverage(num: int, left_out: int) -> float:
    """Probability that the true median is between the values that remain after leaving out `left_out` at each end."""
    return 1 - 2 * sum(comb(num, i) for i in range(left_out + 1)) / (1 << num)


def share_interval(share: float, num: int) -> tuple[float, float]:
    """Low and high limit of the true share, with CONFIDENCE, if `share` of `num` independent draws were hits.

    Wilson's score interval: the true shares that the draws do not contradict. Unlike share +- 1.96 standard errors, it
    lies within 0 and 1, and has a width at 0 and 1. Source: Wilson, Journal of the American Statistical Association 22,
    1927, page 209. Raises ValueError for no draws.
    """
    if num < 1:
        raise ValueError("no draws, no share")
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    shrink = 1 + z * z / num
    middle = (share + z * z / (2 * num)) / shrink
    margin = z / shrink * sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return max(0.0, middle - margin), min(1.0, middle + margin)
