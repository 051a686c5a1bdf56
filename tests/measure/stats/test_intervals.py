"""Intervals of medians and shares against published values."""

import numpy as np
import pytest

from imagenet_opt.measure.stats.intervals import median_interval, share_interval


@pytest.mark.parametrize(
    ("num", "low", "high", "covers"),
    [  # from the table of the binomial distribution with p = 1/2: 1 - 2 P(X < low)
        (1, 1, 1, 0.0),
        (2, 1, 2, 0.5),
        (6, 1, 6, 0.96875),
        (9, 2, 8, 0.9609375),
        (20, 6, 15, 0.958611),
    ],
)
def test_the_interval_is_the_closest_pair_of_values_with_enough_coverage(
    num: int, low: int, high: int, covers: float
) -> None:
    values = np.random.default_rng(num).permutation(np.arange(1, num + 1)).tolist()
    interval = (np.median(values), low, high, pytest.approx(covers, abs=1e-6), num)
    assert median_interval(values) == interval


@pytest.mark.parametrize(
    ("hits", "num", "low", "high"),
    [  # Newcombe, Statistics in Medicine 17, 1998, page 857, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (0, 20, 0, 0.1611),
        (20, 20, 0.8389, 1),  # the mirror image of 0 of 20
    ],
)
def test_the_interval_of_a_share_has_the_published_limits(hits: int, num: int, low: float, high: float) -> None:
    assert share_interval(hits / num, num) == pytest.approx((low, high), abs=5e-5)
