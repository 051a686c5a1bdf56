"""What a ratio with its interval says: faster, slower, no difference, or undecided."""

from typing import NamedTuple

MARGIN = 1.03
"""Ratios from 1 / MARGIN to MARGIN make no difference that a user would notice."""
UNDECIDED = "undecided"


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
