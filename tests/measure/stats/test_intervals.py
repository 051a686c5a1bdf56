"""Intervals of medians and shares against simulations, published values and values computed by hand."""

from itertools import product

import numpy as np
import pytest

from imagenet_opt.measure.stats.intervals import coverage, median_interval, share_interval


@pytest.mark.parametrize(
    ("num", "low", "high", "covers"),
    [  # from the table of the binomial distribution with p = 1/2: 1 - 2 P(X < low)
        (1, 1, 1, 0.0),
        (2, 1, 2, 0.5),
        (5, 1, 5, 0.9375),
        (6, 1, 6, 0.96875),
        (8, 1, 8, 0.9921875),
        (9, 2, 8, 0.9609375),
        (12, 3, 10, 0.961426),
        (15, 4, 12, 0.964844),
        (20, 6, 15, 0.958611),
    ],
)
def test_the_interval_is_the_closest_pair_of_values_with_enough_coverage(
    num: int, low: int, high: int, covers: float
) -> None:
    values = np.random.default_rng(num).permutation(np.arange(1, num + 1)).tolist()
    interval = (np.median(values), low, high, pytest.approx(covers, abs=1e-6), num)
    assert median_interval(values) == interval


def test_coverage_is_the_share_of_all_patterns_of_values_above_and_below_the_median() -> None:
    patterns = list(product((0, 1), repeat=7))
    for left_out in (0, 1, 2):
        holds = sum(left_out < sum(above) < 7 - left_out for above in patterns)
        assert coverage(7, left_out) == pytest.approx(holds / len(patterns))


def test_the_interval_of_a_skewed_distribution_has_the_stated_coverage() -> None:
    rng = np.random.default_rng(0)
    intervals = [median_interval(row.tolist()) for row in rng.exponential(size=(4000, 9))]
    hits = np.mean([interval.low <= np.log(2) <= interval.high for interval in intervals])
    assert hits == pytest.approx(intervals[0].coverage, abs=0.015)


def test_it_agrees_with_a_bootstrap_of_many_values() -> None:
    values = np.random.default_rng(1).normal(100, 5, size=60)
    resampled = np.median(np.random.default_rng(2).choice(values, size=(5000, 60)), axis=1)
    interval = median_interval(values.tolist())
    np.testing.assert_allclose((interval.low, interval.high), np.quantile(resampled, (0.025, 0.975)), atol=0.6)


def test_no_values_have_no_median() -> None:
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


@pytest.mark.parametrize(
    ("hits", "num", "low", "high"),
    [  # Newcombe, Statistics in Medicine 17, 1998, page 857, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1),  # the mirror image of 0 of 20
    ],
)
def test_the_interval_of_a_share_has_the_published_limits(hits: int, num: int, low: float, high: float) -> None:
    assert share_interval(hits / num, num) == pytest.approx((low, high), abs=5e-5)


def test_no_values_have_no_share() -> None:
    with pytest.raises(ValueError, match="no draws"):
        share_interval(0, 0)
