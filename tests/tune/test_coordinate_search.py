"""Searches among settings whose rates are known, some of them with noise that is known as well."""

from collections.abc import Sequence
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


def test_it_ends_at_once_where_the_first_is_enough() -> None:
    tried: list[Setting] = []
    found = climb((2, 4), (workers, ahead), lambda setting: tried.append(setting) or 1000.0, enough=1000)
    assert (found.best, found.why, tried) == ((2, 4), "enough", [(2, 4)])


def test_it_goes_from_the_best_and_stops_when_that_is_enough() -> None:
    found = climb((2, 4), (workers, ahead), lambda setting: 100.0 * setting[0], enough=750)
    assert (found.best, found.why) == ((8, 4), "enough")
    assert list(found.turns) == [(2, 4), (8, 4)] and len(found.turns[8, 4]) == 1 + 4
    assert found.verdicts == {(8, 4): "faster"}


def test_an_axis_ends_at_the_first_that_brings_nothing() -> None:
    found = climb((2, 4), (workers, ahead), lambda setting: 100.0 + 2 * (setting[1] == 8), enough=None)
    assert (found.best, found.why) == ((2, 4), "nothing more")
    assert list(found.turns) == [(2, 4), (8, 4), (2, 8)], "2 % is not worth proving"


def test_a_lucky_turn_is_not_kept() -> None:
    rates = {(2, 4): iter([100.0, 130.0, 100.0, 100.0, 100.0]), (8, 4): iter([120.0, 100.0, 100.0, 100.0, 140.0])}
    found = climb((2, 4), (workers,), lambda setting: next(rates[setting]), enough=None)
    assert found.best == (2, 4) and len(found.turns[8, 4]) == 1 + 4
    assert found.verdicts == {(8, 4): "undecided"}


def test_who_fails_is_named_and_not_who_is_compared_with_it() -> None:
    rates = {(2, 4): iter([100.0]), (8, 4): iter([120.0] * 3)}

    def rate(setting: Setting) -> float:
        if (found := next(rates[setting], None)) is None:
            raise TurnFailed("read error")
        return found

    found = climb((2, 4), (workers,), rate, enough=None)
    assert (found.best, found.failures) == ((2, 4), {(2, 4): "read error"})


def test_what_fails_is_passed_over_and_the_budget_ends_it() -> None:
    def rate(setting: Setting) -> float:
        if setting[0] == 8:
            raise TurnFailed("no memory for the workers")
        if setting[1] != 4:
            raise OutOfTime
        return 100.0

    found = climb((2, 4), (workers, ahead), rate, enough=None)
    assert (found.best, found.why) == ((2, 4), "budget") and found.failures == {(8, 4): "no memory for the workers"}


@pytest.mark.parametrize("num_candidates", [1, 2, 3, 5, 8])
def test_among_equals_a_search_hardly_ever_names_one(num_candidates: int) -> None:
    """Turns that differ by noise alone, 2000 searches: one in twenty may err, give or take chance."""
    random = Random(num_candidates)
    axes = [lambda best, setting=(num, 4): [setting] for num in range(num_candidates)]
    searches = [climb((99, 4), axes, lambda setting: random.gauss(100, 5), enough=None) for _ in range(2000)]
    assert sum(found.best != (99, 4) for found in searches) / 2000 < 0.06


def test_what_became_of_each_setting_is_said() -> None:
    rates = {(2, 4): 100.0, (8, 4): 150.0, (6, 4): 90.0, (4, 4): 180.0}
    found = climb((2, 4), [lambda best, one=one: [one] for one in list(rates)[1:]], rates.__getitem__, enough=None)
    said = ["as it was", "faster, surpassed", "not 3 % faster", "faster", "not tried: budget"]
    assert [found.outcome(setting) for setting in [*rates, (1, 1)]] == said


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
