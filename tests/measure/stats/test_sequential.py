"""Comparisons that stop early still hold together with the stated confidence."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from imagenet_opt.measure.stats.block_ratios import UNDECIDED, Ratio, block_ratios, verdict
from imagenet_opt.measure.stats.sequential import looks, rounds_to_decide, sequential_ratios

ROWS = [f"row {i}" for i in range(10)]
PAIRS = [(row, "start") for row in ROWS]


def study(rng: np.random.Generator, effects: Mapping[str, float], *, noise: float, num_rounds: int) -> list[set[str]]:
    """Verdicts of each pair of a simulated study, in which rows stop as a real study lets them stop.

    The noise is that of shared machines: whole rounds are slow, and one turn in ten is disturbed.
    """
    shape = (2, len(ROWS) + 1, num_rounds)
    logs = rng.normal(0, noise, shape) + rng.normal(0, 3 * noise, (2, 1, num_rounds))
    logs -= rng.exponential(2 * noise, shape) * (rng.random(shape) < 0.1)
    names = ["start", *ROWS]
    rates = np.exp(logs) * np.array([effects.get(name, 1.0) for name in names])[:, None]
    claimed: list[set[str]] = [set() for _ in PAIRS]
    for measure in rates:
        values = dict(zip(names, measure.tolist(), strict=True))
        kept = dict.fromkeys(names, num_rounds)
        for num, _ in looks(num_rounds, is_over=True)[:-1]:
            so_far = {name: rounds[: min(num, kept[name])] for name, rounds in values.items()}
            for (row, _), latest in zip(PAIRS, verdicts(so_far, is_over=False), strict=True):
                if latest not in (None, UNDECIDED):
                    kept[row] = min(kept[row], num)
        final = {name: rounds[: kept[name]] for name, rounds in values.items()}
        for row, latest in zip(claimed, verdicts(final, is_over=True), strict=True):
            row.add(latest or UNDECIDED)
    return claimed


def verdicts(values: Mapping[str, Sequence[float]], *, is_over: bool) -> list[str | None]:
    ratios = sequential_ratios(values, PAIRS, num_comparisons=2 * len(PAIRS), is_over=is_over)
    return [None if ratio is None else verdict(ratio) for ratio in ratios]


def test_the_errors_of_all_looks_sum_up_to_the_allowed_error() -> None:
    assert [num for num, _ in looks(11, is_over=True)] == [2, 4, 8, 11]
    assert [num for num, _ in looks(9, is_over=False)] == [2, 4, 8]
    assert [num for num, _ in looks(8, is_over=True)] == [2, 4, 8, 8]
    assert 0 < sum(1 - confidence for _, confidence in looks(10_000, is_over=True)) < 0.05
    assert looks(3, is_over=True) == [(2, pytest.approx(0.99375)), (3, pytest.approx(0.9625))]


def test_a_row_that_stopped_at_a_look_is_decided_at_the_end_as_well() -> None:
    """The share of a look does not depend on what follows, except at the last look."""
    early, late = looks(4, is_over=False), looks(16, is_over=True)
    assert early == late[:2] and late[-1][1] < looks(16, is_over=False)[-1][1]


def test_an_interval_that_decided_at_a_look_does_not_become_narrower_at_the_end() -> None:
    """By the confidence of the last look, the second row would be faster."""
    rates = {"start": [1.0, 1.0], "row 0": [1.01, 1.0101]}
    ratios = [sequential_ratios(rates, PAIRS[:1], num_comparisons=2, is_over=is_over)[0] for is_over in (False, True)]
    assert ratios[0] == ratios[1] and ratios[1] is not None and verdict(ratios[1]) == "no difference"
    last = block_ratios(rates, PAIRS[:1], num_comparisons=2, confidence=looks(2, is_over=True)[-1][1])[0]
    assert verdict(last) == "faster"


def test_one_look_is_a_block_ratio_and_no_look_none() -> None:
    rates = {"start": [1.0, 1.1], "row 0": [2.0, 2.3], "row 1": [1.0, 1.2]}
    pairs = [("row 0", "start"), ("row 1", "start")]
    expected = block_ratios(rates, pairs, num_comparisons=4, confidence=looks(2, is_over=True)[-1][1])
    assert sequential_ratios(rates, pairs, num_comparisons=4, is_over=True) == expected
    one_round = {name: rounds[:1] for name, rounds in rates.items()}
    assert sequential_ratios(one_round, pairs, num_comparisons=4, is_over=False) == [None, None]


def test_studies_of_equal_rows_seldom_claim_a_difference() -> None:
    """Source of the limit: binomial, 300 studies at 5 % give 25 or more in 1 % of cases."""
    rng = np.random.default_rng(0)
    claims = sum(
        any({"faster", "slower"} & row for row in study(rng, {}, noise=0.03, num_rounds=12)) for _ in range(300)
    )
    assert claims < 25


def test_differences_are_found() -> None:
    rng = np.random.default_rng(0)
    effects = {"row 0": 1.15, "row 1": 0.85}
    studies = [study(rng, effects, noise=0.03, num_rounds=12) for _ in range(20)]
    assert all("faster" in rows[0] and "slower" in rows[1] for rows in studies)


def test_the_width_of_an_interval_forecasts_the_rounds_that_decide() -> None:
    doubtful = Ratio(1.1, 1.1 / 1.21, 1.1 * 1.21, 0.95)
    assert rounds_to_decide(doubtful, 4) == pytest.approx(16)
    equal = Ratio(1.0, 1 / 1.03**3, 1.03**3, 0.95)
    assert rounds_to_decide(equal, 4) == pytest.approx(36)


def test_the_forecast_counts_that_students_quantile_falls() -> None:
    """Of two rounds with a noise of 2 %: the least number of rounds that brings an interval of 1.05 above 1."""
    (ratio,) = block_ratios({"with": [1.05, 1.05 * 1.04], "without": [1.0, 1.0]}, [("with", "without")])
    num, noise = rounds_to_decide(ratio, 2), np.std(np.log([1.0, 1.04]), ddof=1)
    reach = [stats.t.ppf(0.975, n - 1) * noise / n**0.5 for n in (num - 1, num)]
    assert reach[1] <= np.log(ratio.ratio) < reach[0]
