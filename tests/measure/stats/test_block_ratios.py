import math

import numpy as np
import pytest

from imagenet_opt.measure.stats.block_ratios import (
    Ratio,
    block_ratios,
    measured_ratios,
    pair_ratio,
    student_quantile,
    verdict,
)


def test_quantiles_are_those_of_printed_tables() -> None:
    table = {(0.975, 1): 12.7062, (0.975, 2): 4.3027, (0.975, 3): 3.1824, (0.995, 5): 4.0321, (0.95, 10): 1.8125}
    for (probability, freedom), quantile in (table | {(0.999, 30): 3.3852}).items():
        assert student_quantile(probability, freedom) == pytest.approx(quantile, abs=6e-5)


def test_a_round_that_is_slow_for_all_names_is_not_noise() -> None:
    machine = [1.0, 0.5, 0.8, 1.1]
    values = {"start": [100 * speed for speed in machine], "step": [120 * speed for speed in machine]}
    (ratio,) = block_ratios(values, [("step", "start")])
    assert ratio[:3] == pytest.approx((1.2, 1.2, 1.2))
    assert verdict(ratio) == "faster"
    assert pair_ratio(values["step"], [*values["start"], 7.0]) == ratio, "only rounds that both have"


def test_the_interval_is_that_of_a_regression_on_names_and_rounds() -> None:
    """Two ways to the same numbers: least squares with a dummy for each name and round."""
    random = np.random.default_rng(0)
    logs = random.normal(0, 0.05, (3, 4)) + np.array([[4.0], [4.1], [3.9]])
    design = [
        [float(i == name) for i in range(3)] + [float(j == r) for j in range(1, 4)]
        for name in range(3)
        for r in range(4)
    ]
    coefficients, squares, *_ = np.linalg.lstsq(np.array(design), logs.ravel(), rcond=None)
    reach = 3.7074 * math.sqrt(float(squares[0]) / 6) * math.sqrt(2 / 4)  # t of 99.5 % one-sided, 6 degrees of freedom
    values = {name: np.exp(row).tolist() for name, row in zip("abc", logs, strict=True)}
    ratio = block_ratios(values, [("b", "a")], num_comparisons=5)[0]
    middle = coefficients[1] - coefficients[0]
    assert math.log(ratio.ratio) == pytest.approx(middle)
    assert (math.log(ratio.low), math.log(ratio.high)) == pytest.approx((middle - reach, middle + reach), rel=1e-4)


def test_equal_names_seldom_differ() -> None:
    """Ten comparisons of equal names, 400 times: about one family in twenty at most may contain an error."""
    random = np.random.default_rng(1)
    names = [str(i) for i in range(11)]
    errors = 0
    for _ in range(400):
        rounds = random.normal(0, 0.2, 4)
        values = {name: np.exp(random.normal(0, 0.03, 4) + rounds).tolist() for name in names}
        ratios = block_ratios(values, [(name, "0") for name in names[1:]])
        errors += any(verdict(ratio) in ("faster", "slower") for ratio in ratios)
    assert errors / 400 < 0.08


def test_a_machine_that_is_slow_in_some_turns_hardly_widens_the_interval_of_many_rounds() -> None:
    """24 rounds in which every tenth turn is a fifth slower: 95 % of the intervals contain the ratio, and they are
    narrower than Student's."""
    random = np.random.default_rng(2)
    found, widths = 0, []
    for _ in range(400):
        logs = random.normal(0, 0.03, (2, 24)) - 0.2 * (random.random((2, 24)) < 0.1) + [[0.05], [0.0]]
        (ratio,) = block_ratios({"ours": np.exp(logs[0]), "theirs": np.exp(logs[1])}, [("ours", "theirs")])
        found += ratio.low <= math.exp(0.05) <= ratio.high
        reach = student_quantile(0.975, 23) * (logs[0] - logs[1]).std(ddof=1) / math.sqrt(24)
        widths.append(math.log(ratio.high / ratio.low) / (2 * reach))
    assert found / 400 > 0.93
    assert np.mean(widths) < 0.85


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (1.1, 1.3, "faster"),
        (1.01, 1.02, "faster"),
        (0.7, 0.9, "slower"),
        (0.98, 1.02, "no difference"),
        (1.0, 1.03, "no difference"),
        (0.99, 1.2, "undecided"),
        (0.8, 1.01, "undecided"),
        (0.97, 3.36, "undecided"),
    ],
)
def test_no_difference_needs_an_interval_that_is_narrow(low: float, high: float, says: str) -> None:
    assert verdict(Ratio(math.sqrt(low * high), low, high, 0.95)) == says


def test_a_single_round_decides_nothing() -> None:
    (ratio,) = block_ratios({"a": [1.0], "b": [2.0]}, [("b", "a")])
    assert (ratio, verdict(ratio)) == (Ratio(pytest.approx(2.0), 0.0, math.inf, 0.0), "undecided")


def test_a_name_that_failed_in_a_round_is_left_out() -> None:
    pairs = [("b", "a"), ("c", "a")]
    values = {"a": [1.0, 1.1, 1.2], "b": [2.0, 2.3, 2.4], "c": [9.0]}
    expected = block_ratios({name: values[name] for name in "ab"}, pairs[:1])
    assert measured_ratios(values, pairs) == {"b": expected[0]}
    assert measured_ratios(values | {"a": []}, pairs) == {}
    assert measured_ratios({"a": [], "b": []}, pairs) == {}
