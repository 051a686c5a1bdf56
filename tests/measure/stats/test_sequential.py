"""Comparisons that stop early still hold together with the stated confidence."""

from collections.abc import Mapping

import numpy as np
import pytest

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
    measured = {measure: dict(zip(names, rates[i].tolist(), strict=True)) for i, measure in enumerate(("a", "b"))}
    kept = dict.fromkeys(names, num_rounds)
    for num, _ in looks(num_rounds)[:-1]:
        cut = {name: {row: values[:num] for row, values in rows.items()} for name, rows in measured.items()}
        ratios = sequential_ratios(
            {name: {r: v[: kept[r]] for r, v in rows.items()} for name, rows in cut.items()}, PAIRS
        )
        for (row, _), latest in zip(PAIRS, ratios, strict=True):
            if UNDECIDED not in verdicts(latest):
                kept[row] = min(kept[row], num)
    final = {name: {row: values[: kept[row]] for row, values in rows.items()} for name, rows in measured.items()}
    return [verdicts(latest) for latest in sequential_ratios(final, PAIRS)]


def verdicts(ratios: Mapping[str, Ratio]) -> set[str]:
    return {verdict(ratio) for ratio in ratios.values()}


def test_the_errors_of_all_looks_sum_up_to_the_allowed_error() -> None:
    assert [num for num, _ in looks(11)] == [2, 4, 8, 11] and [num for num, _ in looks(8)] == [2, 4, 8]
    assert 0 < sum(1 - confidence for _, confidence in looks(10_000)) < 0.05
    assert looks(3) == [(2, pytest.approx(0.99375)), (3, pytest.approx(0.9625))]


def test_one_look_is_a_block_ratio() -> None:
    rates = {"start": [1.0, 1.1], "row 0": [2.0, 2.3], "row 1": [1.0, 1.2]}
    pairs = [("row 0", "start"), ("row 1", "start")]
    all_ratios = sequential_ratios({"a": rates}, pairs)
    assert [ratios["a"] for ratios in all_ratios] == block_ratios(rates, pairs, confidence=looks(2)[0][1])


def test_studies_of_equal_rows_seldom_claim_a_difference() -> None:
    """Source of the limit: binomial, 300 studies at 5 % give 25 or more in 1 % of cases."""
    rng = np.random.default_rng(0)
    claims = sum(
        any({"faster", "slower"} & verdicts for verdicts in study(rng, {}, noise=0.03, num_rounds=12))
        for _ in range(300)
    )
    assert claims < 25


def test_differences_are_found() -> None:
    rng = np.random.default_rng(0)
    effects = {"row 0": 1.15, "row 1": 0.85}
    studies = [study(rng, effects, noise=0.03, num_rounds=12) for _ in range(20)]
    assert all("faster" in verdicts[0] and "slower" in verdicts[1] for verdicts in studies)


def test_the_width_of_an_interval_forecasts_the_rounds_that_decide() -> None:
    doubtful = Ratio(1.1, 1.1 / 1.21, 1.1 * 1.21, 0.95)
    assert rounds_to_decide(doubtful, 4) == pytest.approx(16)
    equal = Ratio(1.0, 1 / 1.03**3, 1.03**3, 0.95)
    assert rounds_to_decide(equal, 4) == pytest.approx(36)
