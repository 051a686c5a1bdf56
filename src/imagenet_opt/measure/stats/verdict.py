"""Ratios of values that were measured in rounds, their intervals, and what they say: faster, slower or neither."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from imagenet_opt.measure.stats.intervals import CONFIDENCE

MARGIN = 1.03
"""Ratios from 1 / MARGIN to MARGIN make no difference that a user would notice."""
LEAST_GAIN = 1.05
"""A remedy that makes a run less than this many times as fast is no cause: that is noise."""
UNDECIDED = "undecided"
_NEARLY, _NEARLY_AT_LEAST = 0.9, 0.75
_LARGE_FREEDOM = 200
"""More degrees of freedom hardly change Student's quantile."""


class Ratio(NamedTuple):
    """ratio: of geometric means. coverage: probability that all ratios of the family lie between their low and high; 0
    with too few rounds. num_rounds: from which it was computed. error: probability that this interval is wrong."""

    ratio: float
    low: float
    high: float
    coverage: float
    num_rounds: int = 0
    error: float = 0.0


def verdict(ratio: Ratio) -> str:
    """faster, slower: the whole interval lies on one side of 1. no difference: the interval contains 1 and lies within
    MARGIN. UNDECIDED: everything else; more rounds narrow the interval."""
    if ratio.low > 1:
        return "faster"
    if ratio.high < 1:
        return "slower"
    return "no difference" if ratio.low >= 1 / MARGIN and ratio.high <= MARGIN else UNDECIDED


def paired_ratios(
    values: Mapping[str, Sequence[float]], pairs: Sequence[tuple[str, str]], *, num_comparisons: int | None = None
) -> list[Ratio]:
    """first / second of each pair, over the rounds that both have. values: one positive value per name and round.

    Each interval is Student's, from the differences of the logarithms of that pair alone, so a round that is slow for
    all names changes no ratio, and a name that scatters widens only its own intervals. Bonferroni's correction for
    `num_comparisons` (None: the number of pairs) lets all intervals contain the true ratios at once with probability
    CONFIDENCE. Source: paired t-test, Montgomery, Design and Analysis of Experiments, section 2.5.
    """
    error = (1 - CONFIDENCE) / max(1, num_comparisons or len(pairs))
    return [_paired(values[ours], values[theirs], error) for ours, theirs in pairs]


def _paired(ours: Sequence[float], theirs: Sequence[float], error: float) -> Ratio:
    differences = [math.log(our / their) for our, their in zip(ours, theirs, strict=False)]
    if (num := len(differences)) < 2:
        return Ratio(math.exp(fmean(differences)), 0.0, math.inf, 0.0, num)
    ratio, low, high = map(math.exp, student_interval(differences, error))
    return Ratio(ratio, low, high, CONFIDENCE, num, error)


def student_interval(values: Sequence[float], error: float) -> tuple[float, float, float]:
    """The mean of two or more values, and the interval that contains the true mean except with probability `error`."""
    middle = fmean(values)
    reach = student_quantile(1 - error / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return middle, middle - reach, middle + reach


def nearly(scatter: float) -> float:
    """Of the remedies that gain this share of the largest gain, the first in order is named: its remedy is simplest.
    Gains that differ by less than the run itself are equal, otherwise chance would choose among them. scatter: low
    limit of the rate of the run / the rate."""
    return max(_NEARLY_AT_LEAST, min(_NEARLY, scatter))


def more_rounds(ratio: Ratio) -> float:
    """Further rounds that will probably decide an undecided ratio; 0 for a decided one, or one without an interval.

    The interval must become so narrow that it excludes 1 or lies within MARGIN. Its width shrinks with the root of the
    rounds, and with Student's quantile.
    """
    num = ratio.num_rounds
    if verdict(ratio) != UNDECIDED or not ratio.coverage:
        return 0.0

    def width(num_rounds: int) -> float:
        freedom = min(_LARGE_FREEDOM, num_rounds - 1)
        return student_quantile(1 - ratio.error / 2, freedom) / math.sqrt(num_rounds)

    centre, reach = abs(math.log(ratio.ratio)), (math.log(ratio.high) - math.log(ratio.low)) / 2
    shrinks = reach / max(centre, math.log(MARGIN) - centre)
    goal, rounds = width(num) / shrinks, range(num + 1, max(num + 1, math.ceil(num * shrinks**2)))
    return 1 + bisect_left(rounds, True, key=lambda num_rounds: width(num_rounds) <= goal)


def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t. probability: above 0.5. freedom: degrees of freedom."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < 2 * probability - 1:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 2 * probability - 1 else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """Probability that Student's t is between -t and t. Source: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd, total = math.cos(angle), freedom % 2, 0.0
    term = cosine if odd else 1.0
    for i in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * (i / (i + 1))
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
