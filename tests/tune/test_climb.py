"""Searches among settings with known rates, without noise and with known noise."""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from imagenet_opt.measure.stats.rounds import Deadline, OutOfTime, TurnFailed
from imagenet_opt.tune.climb import climb

Setting = tuple[int, int]
"""Workers, and batches ahead."""


def workers(best: Setting) -> Sequence[Setting]:
    return [(num, best[1]) for num in (8, 6, 4) if num != best[0]]


def ahead(best: Setting) -> Sequence[Setting]:
    return [(best[0], num) for num in (8, 2)]


@pytest.mark.parametrize(
    ("rate", "enough", "best", "why", "tried"),
    [
        (lambda setting: 1000.0, 1000, (2, 4), "enough", [(2, 4)]),
        (lambda setting: 100.0 * setting[0], 750, (8, 4), "enough", [(2, 4), (8, 4)]),
        # 2 % is not worth proving
        (lambda setting: 100.0 + 2 * (setting[1] == 8), None, (2, 4), "nothing more", [(2, 4), (8, 4), (2, 8)]),
    ],
)
def test_a_search_ends_at_a_sufficient_rate_and_an_axis_at_the_first_setting_without_gain(
    rate: Callable[[Setting], float], enough: float | None, best: Setting, why: str, tried: list[Setting]
) -> None:
    climbed = climb((2, 4), (workers, ahead), rate, enough=enough)
    assert (climbed.best, climbed.why, list(climbed.rates)) == (best, why, list(map(str, tried)))


def test_a_lucky_turn_is_not_kept() -> None:
    rates = {(2, 4): iter([100.0, 130.0, 100.0, 100.0, 100.0]), (8, 4): iter([120.0, 100.0, 100.0, 100.0, 140.0])}
    climbed = climb((2, 4), (workers,), lambda setting: next(rates[setting]))
    assert climbed.best == (2, 4) and len(climbed.rates["(8, 4)"]) == 1 + 4
    assert climbed.outcome("(8, 4)").startswith("undecided, about ")


def test_a_failed_turn_counts_for_its_own_setting() -> None:
    rates = {(2, 4): iter([100.0]), (8, 4): iter([120.0] * 3)}

    def rate(setting: Setting) -> float:
        if (images_per_second := next(rates[setting], None)) is None:
            raise TurnFailed("read error")
        return images_per_second

    climbed = climb((2, 4), (workers,), rate)
    assert (climbed.best, climbed.outcomes) == (
        (2, 4),
        {"(2, 4)": "kept, though once: read error", "(8, 4)": "undecided"},
    )


def test_failed_settings_are_left_out_and_the_budget_ends_the_search() -> None:
    def rate(setting: Setting) -> float:
        if setting[0] == 8:
            raise TurnFailed("no memory for the workers")
        if setting[1] != 4:
            raise OutOfTime
        return 100.0

    climbed = climb((2, 4), (workers, ahead), rate)
    assert (climbed.best, climbed.why) == ((2, 4), "budget")
    assert climbed.outcomes == {"(2, 4)": "as it was", "(8, 4)": "no memory for the workers"}


@pytest.mark.parametrize("num_candidates", [1, 2, 3, 5, 8])
def test_a_search_among_equal_settings_seldom_names_one(num_candidates: int) -> None:
    """2000 searches among turns that differ by noise alone: at most one in twenty may err, plus a margin for chance."""
    random = Random(num_candidates)
    axes = [lambda best, setting=(num, 4): [setting] for num in range(num_candidates)]
    searches = [climb((99, 4), axes, lambda setting: random.gauss(100, 5)) for _ in range(2000)]
    assert sum(climbed.best != (99, 4) for climbed in searches) / 2000 < 0.06


def test_each_setting_has_an_outcome_and_the_range_of_its_turns() -> None:
    rates = {"now": 100.0, "fast": 150.0, "slow": 90.0, "fastest": 180.0}
    climbed = climb("now", [lambda best, one=one: [one] for one in list(rates)[1:]], rates.__getitem__)
    climbed.names, climbed.compile_seconds = (*rates, "last"), {"fast": 31.0}
    climbed.rates["fast"][0] = 140.0
    assert climbed.table("ways").texts() == [
        ["now", "100.0", "100.0", "100.0", "1.00", "5", "-", "as it was"],
        ["fast", "150.0", "140.0", "150.0", "1.50", "9", "31", "faster, surpassed"],
        ["slow", "90.0", "-", "-", "0.90", "1", "-", "not 3 % faster in one turn"],
        ["fastest", "180.0", "180.0", "180.0", "1.80", "5", "-", "faster"],
        ["last", "-", "-", "-", "-", "0", "-", "not tried: budget"],
    ]


def test_a_deadline_has_shares() -> None:
    now = [100.0]
    deadline = Deadline(60, clock=lambda: now[0])
    now[0] += 20
    assert (deadline.passed, deadline.left(0.5), deadline.left()) == (20, 10, 40)
    deadline.check(10, 0.5)
    with pytest.raises(OutOfTime):
        deadline.check(11, 0.5)
    now[0] += 100
    assert deadline.left() == 0
