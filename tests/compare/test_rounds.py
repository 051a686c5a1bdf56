"""Rounds of several setups, whose measurements are functions."""

from collections.abc import Iterable

import pytest

from imagenet_opt.compare.rounds import in_rounds, while_time_is_left
from imagenet_opt.measure.stats.rounds import Deadline, TurnFailed


def test_a_failed_setup_has_no_further_rounds_and_the_others_go_on() -> None:
    def measure(name: str, number: int) -> str:
        if (name, number) == ("b", 1):
            raise TurnFailed("b is out of memory")
        return f"{name}{number}"

    rounds = in_rounds("abc", measure, range(3))
    assert rounds.results == {"a": ["a0", "a1", "a2"], "b": ["b0"], "c": ["c0", "c1", "c2"]}
    assert rounds.reasons == ("b: b is out of memory",) and rounds.complete.keys() == {"a", "c"}


@pytest.mark.parametrize(
    ("budget", "stored", "num_rounds"),
    [(0.0, (), 4), (310.0, (), 5), (70.0, range(6), 7)],
    ids=["four rounds in any case", "as long as there is time", "stored rounds take no time"],
)
def test_a_budget_decides_the_number_of_rounds(budget: float, stored: Iterable[int], num_rounds: int) -> None:
    """A round takes 60 s by this clock."""
    now = [0.0]
    rounds = 0
    for number in while_time_is_left(
        Deadline(budget, clock=lambda: now[0]), lambda: 60.0, lambda number: number in stored
    ):
        now[0] += 0.0 if number in stored else 60.0
        rounds += 1
    assert rounds == num_rounds
