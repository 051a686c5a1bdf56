"""A confidence interval for the middle of symmetrically distributed numbers, which a few outliers hardly widen."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np


def signed_rank_interval(numbers: Sequence[float], error: float) -> tuple[float, float, float] | None:
    """The Hodges-Lehmann estimate of the middle, and the low and high end of its interval.

    error: probability that the interval misses the middle, at most. None with too few numbers: an end of the interval
    must not depend on one outlier, which takes 12 numbers for an error of 0.05. The numbers must be independent and
    distributed symmetrically about the middle, in any shape.
    Source: the interval of the signed-rank test, Hollander and Wolfe, Nonparametric Statistical Methods, section 3.4.
    """
    num = len(numbers)
    num_cut = _num_cut(num, error / 2)
    if num_cut <= num:  # one outlier is part of `num` averages
        return None
    first, second = np.triu_indices(num)
    averages = np.sort((np.asarray(numbers)[first] + np.asarray(numbers)[second]) / 2)
    return float(np.median(averages)), float(averages[num_cut - 1]), float(averages[-num_cut])


@lru_cache
def _num_cut(num: int, tail: float) -> int:
    """Number of values of the signed-rank sum of `num` numbers, from 0 on, that have at most the probability `tail`
    together: the end of the interval is the average of two numbers with this place."""
    probabilities = np.zeros(num * (num + 1) // 2 + 1)
    probabilities[0] = 1.0
    for rank in range(1, num + 1):
        with_rank = np.zeros_like(probabilities)
        with_rank[rank:] = probabilities[:-rank]
        probabilities = (probabilities + with_rank) / 2
    return int(np.searchsorted(np.cumsum(probabilities), tail, side="right"))
