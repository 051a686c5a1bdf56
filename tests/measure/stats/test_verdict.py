import math

import numpy as np
import pytest

from imagenet_opt.measure.stats.verdict import Ratio, more_rounds, paired_ratios, student_quantile, verdict


def test_quantiles_are_those_of_printed_tables() -> None:
    table = {(0.975, 1): 12.7062, (0.975, 2): 4.3027, (0.975, 3): 3.1824, (0.995, 5): 4.0321, (0.95, 10): 1.8125}
    for (probability, freedom), quantile in (table | {(0.999, 30): 3.3852}).items():
        assert student_quantile(probability, freedom) == pytest.approx(quantile, abs=6e-5)


def test_a_round_that_is_slow_for_all_names_is_not_noise() -> None:
    machine = [1.0, 0.5, 0.8, 1.1]
    values = {"start": [*(100 * speed for speed in machine), 7.0], "step": [120 * speed for speed in machine]}
    (ratio,) = paired_ratios(values, [("step", "start")])
    assert ratio[:3] == pytest.approx((1.2, 1.2, 1.2)), "of the rounds that both have"
    assert verdict(ratio) == "faster"


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    """Of the sleep of ten patients with two drugs: Student, The probable error of a mean (1908); R prints 0.70 to 2.46
    at 95 % for `t.test(extra ~ group, data = sleep, paired = TRUE)`. With five comparisons, the quantile of 99.5 %."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    values = {"first": np.exp(first).tolist(), "second": np.exp(second).tolist(), "other": [9.0] * 10}
    (ratio,) = paired_ratios(values, [("second", "first")])
    assert [math.log(each) for each in ratio[:3]] == pytest.approx([1.58, 0.7001142, 2.4598858], abs=1e-5)
    (wider,) = paired_ratios(values, [("second", "first")], num_comparisons=5)
    reach = student_quantile(0.995, 9) * np.std(np.subtract(second, first), ddof=1) / math.sqrt(10)
    assert math.log(wider.high) == pytest.approx(1.58 + reach)


def test_the_forecast_of_rounds_is_the_number_that_decides() -> None:
    """The same scatter in more rounds: 2 % in the middle, pairs 3 % to both sides of it."""

    def ratio(num: int) -> Ratio:
        ours = [100 * 1.02 * (1.03 if i % 2 else 1 / 1.03) for i in range(num)]
        return paired_ratios({"ours": ours, "theirs": [100.0] * num}, [("ours", "theirs")])[0]

    assert verdict(ratio(4)) == "undecided" and more_rounds(ratio(40)) == 0
    expected = 4 + more_rounds(ratio(4))
    first = next(num for num in range(4, 40, 2) if verdict(ratio(num)) == "faster")
    assert expected == pytest.approx(first, abs=2)


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (1.1, 1.3, "faster"),
        (0.7, 0.9, "slower"),
        (1.0, 1.03, "no difference"),
        (0.99, 1.2, "undecided"),
        (0.97, 3.36, "undecided"),
    ],
)
def test_no_difference_needs_an_interval_that_is_narrow(low: float, high: float, says: str) -> None:
    assert verdict(Ratio(math.sqrt(low * high), low, high, 0.95)) == says


def test_a_single_round_decides_nothing() -> None:
    (ratio,) = paired_ratios({"a": [1.0], "b": [2.0]}, [("b", "a")])
    assert (ratio, verdict(ratio)) == (Ratio(pytest.approx(2.0), 0.0, math.inf, 0.0, 1), "undecided")
