"""Contests between settings whose rates are known, some of them with noise that is known as well."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from random import Random

import pytest

from imagenet_opt.measure.stats.rounds import Deadline, OutOfTime, TurnFailed
from imagenet_opt.tune.successive_halving import hold_contest


def turns_of(rates: Mapping[str, list[float]], num: int = 1000) -> tuple[Callable[[str, float], float], list[str]]:
    """A turn gives the next rate of its name, round and round; after `num` turns there is no time left."""
    given: dict[str, Iterator[float]] = {name: cycle(values) for name, values in rates.items()}
    log: list[str] = []

    def turn(name: str, seconds: float) -> float:
        if len(log) == num:
            raise OutOfTime
        log.append(f"{name} {seconds:g}")
        return next(given[name])

    return turn, log


def test_the_fastest_wins_and_the_slow_ones_have_one_turn() -> None:
    rates = {"now": [100.0], "a": [90.0], "b": [150.0], "c": [120.0], "d": [110.0], "e": [101.0]}
    turn, log = turns_of(rates)
    found = hold_contest(list(rates), turn, seconds=1)
    assert found.winner == "b" and found.rate("b") == 150
    num = Counter(entry.split()[0] for entry in log)
    assert num["a"] == num["d"] == num["e"] == 1 and num["b"] == num["now"] == 5
    assert log[-1].endswith(" 4"), "turns grow longer with every halving"
    assert {name: found.verdict(name) for name in rates} == {
        "now": "as it was",
        "a": "not faster",
        "b": "faster",
        "c": "slower than the best",
        "d": "slower than the best",
        "e": "slower than the best",
    }


def test_what_is_within_the_noise_is_not_kept() -> None:
    turn, _ = turns_of({"now": [100.0, 108.0, 101.0, 99.0], "a": [105.0, 109.0, 103.0, 101.0]})
    found = hold_contest(["now", "a"], turn, seconds=1)
    assert found.winner == "now" and found.verdict("a") == "undecided"


def test_one_turn_that_is_not_faster_ends_it() -> None:
    turn, log = turns_of({"now": [100.0], "a": [120.0, 99.0]})
    found = hold_contest(["now", "a"], turn, seconds=1)
    assert found.winner == "now" and len(log) == 4


def test_what_fails_leaves_the_others_alone() -> None:
    turn, _ = turns_of({"now": [100.0], "b": [130.0]})

    def failing(name: str, seconds: float) -> float:
        if name == "a":
            raise TurnFailed("CUDA graphs are not for this network")
        return turn(name, seconds)

    found = hold_contest(["now", "a", "b"], failing, seconds=1)
    assert found.winner == "b" and "CUDA graphs" in found.verdict("a")


def test_without_the_time_for_all_turns_nothing_changes() -> None:
    turn, _ = turns_of({"now": [100.0], "a": [150.0], "b": [99.0]}, num=4)
    found = hold_contest(["now", "a", "b"], turn, seconds=1)
    assert found.winner == "now" and found.verdict("a") == "undecided: budget"
    turn, _ = turns_of({"now": [100.0], "a": [150.0], "b": [99.0]}, num=2)
    found = hold_contest(["now", "a", "b"], turn, seconds=1)
    assert found.verdict("b") == "not tried: budget"


@pytest.mark.parametrize("num_candidates", [1, 2, 3, 5, 8])
def test_among_equals_a_contest_hardly_ever_names_one(num_candidates: int) -> None:
    """Turns that differ by noise alone, 2000 contests: one in twenty may err, give or take chance."""
    random = Random(num_candidates)
    names = ["now", *map(str, range(num_candidates))]
    contests = [hold_contest(names, lambda name, seconds: random.gauss(100, 5), seconds=1) for _ in range(2000)]
    assert sum(found.winner != "now" for found in contests) / 2000 < 0.06


def test_four_turns_do_not_decide_between_several() -> None:
    rates = {"now": [100.0], "a": [150.0], "b": [90.0]}
    turn, log = turns_of(rates, num=9)
    found = hold_contest(list(rates), turn, seconds=1)
    assert found.winner == "now" and found.verdict("a") == "undecided: budget"
    assert Counter(entry.split()[0] for entry in log) == {"now": 4, "a": 4, "b": 1}


def test_who_failed_at_once_is_no_candidate() -> None:
    turn, log = turns_of({"now": [100.0], "a": [150.0]})

    def failing(name: str, seconds: float) -> float:
        if name == "b":
            raise TurnFailed("not compiled")
        return turn(name, seconds)

    assert hold_contest(["now", "a", "b"], failing, seconds=1).winner == "a" and len(log) == 8


def test_the_base_alone_has_a_turn() -> None:
    turn, log = turns_of({"now": [100.0]})
    assert hold_contest(["now"], turn, seconds=1).winner == "now" and log == ["now 1"]


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
