"""Searches among settings with known rates, without noise and with known noise."""

from collections.abc import Sequence
from itertools import count
from random import Random

import pytest

from imagenet_opt.measure.stats.rounds import Deadline, OutOfTime, TurnFailed
from imagenet_opt.tune.coordinate_search import climb

Setting = tuple[int, int]
"""Workers, and batches ahead."""


def workers(best: Setting) -> Sequence[Setting]:
    return [(num, best[1]) for num in (8, 6, 4) if num != best[0]]


def ahead(best: Setting) -> Sequence[Setting]:
    return [(best[0], num) for num in (8, 2)]


def test_a_sufficient_start_ends_the_search() -> None:
    tried: list[Setting] = []
    climbed = climb((2, 4), (workers, ahead), lambda setting: tried.append(setting) or 1000.0, enough=1000)
    assert (climbed.best, climbed.why, tried) == ((2, 4), "enough", [(2, 4)])


def test_a_sufficient_setting_ends_the_search() -> None:
    climbed = climb((2, 4), (workers, ahead), lambda setting: 100.0 * setting[0], enough=750)
    assert (climbed.best, climbed.why) == ((8, 4), "enough")
    assert list(climbed.turns) == [(2, 4), (8, 4)] and len(climbed.turns[8, 4]) == 1 + 4
    assert climbed.outcome((8, 4)) == "faster"


def test_an_axis_ends_at_the_first_setting_without_gain() -> None:
    climbed = climb((2, 4), (workers, ahead), lambda setting: 100.0 + 2 * (setting[1] == 8), enough=None)
    assert (climbed.best, climbed.why) == ((2, 4), "nothing more")
    assert list(climbed.turns) == [(2, 4), (8, 4), (2, 8)], "2 % is not worth proving"


def test_a_lucky_turn_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {(2, 4): iter([100.0, 130.0, 100.0, 100.0, 100.0]), (8, 4): iter([120.0, 100.0, 100.0, 100.0, 140.0])}
    seconds = count(0.0, 5.0)  # the clock is read twice in a turn
    monkeypatch.setattr("imagenet_opt.tune.coordinate_search.time.perf_counter", lambda: next(seconds))
    climbed = climb((2, 4), (workers,), lambda setting: next(rates[setting]), enough=None)
    assert climbed.best == (2, 4) and len(climbed.turns[8, 4]) == 1 + 4
    assert climbed.outcome((8, 4)) == "undecided, about 1.9 h more in a study", (
        "679 more turns of 5 s for each of the two"
    )


def test_a_failed_turn_counts_for_its_own_setting() -> None:
    rates = {(2, 4): iter([100.0]), (8, 4): iter([120.0] * 3)}

    def rate(setting: Setting) -> float:
        if (images_per_second := next(rates[setting], None)) is None:
            raise TurnFailed("read error")
        return images_per_second

    climbed = climb((2, 4), (workers,), rate, enough=None)
    assert (climbed.best, climbed.failures) == ((2, 4), {(2, 4): "read error"})


def test_failed_settings_are_left_out_and_the_budget_ends_the_search() -> None:
    def rate(setting: Setting) -> float:
        if setting[0] == 8:
            raise TurnFailed("no memory for the workers")
        if setting[1] != 4:
            raise OutOfTime
        return 100.0

    climbed = climb((2, 4), (workers, ahead), rate, enough=None)
    assert (climbed.best, climbed.why) == ((2, 4), "budget") and climbed.failures == {
        (8, 4): "no memory for the workers"
    }


@pytest.mark.parametrize("num_candidates", [1, 2, 3, 5, 8])
def test_a_search_among_equal_settings_seldom_names_one(num_candidates: int) -> None:
    """2000 searches among turns that differ by noise alone: at most one in twenty may err, plus a margin for chance."""
    random = Random(num_candidates)
    axes = [lambda best, setting=(num, 4): [setting] for num in range(num_candidates)]
    searches = [climb((99, 4), axes, lambda setting: random.gauss(100, 5), enough=None) for _ in range(2000)]
    assert sum(climbed.best != (99, 4) for climbed in searches) / 2000 < 0.06


def test_each_setting_has_an_outcome() -> None:
    rates = {(2, 4): 100.0, (8, 4): 150.0, (6, 4): 90.0, (4, 4): 180.0}
    climbed = climb((2, 4), [lambda best, one=one: [one] for one in list(rates)[1:]], rates.__getitem__, enough=None)
    outcomes = ["as it was", "faster, surpassed", "not 3 % faster in one turn", "faster", "not tried: budget"]
    assert [climbed.outcome(setting) for setting in [*rates, (1, 1)]] == outcomes


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
