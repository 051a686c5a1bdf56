"""Turns: their order, and what a failure does to the others."""

from collections.abc import Callable

from imagenet_opt.measure.stats.rounds import TurnFailed, interleave


def recorded(log: list[str], name: str, fails_after: int = 99) -> Callable[[], int]:
    turns = iter(range(99))

    def turn() -> int:
        if (number := next(turns)) >= fails_after:
            raise TurnFailed(f"{name} ran out of memory")
        log.append(name)
        return number

    return turn


def test_each_name_runs_once_a_round_and_each_round_starts_with_another_name() -> None:
    log: list[str] = []
    rounds = interleave({name: recorded(log, name) for name in "abc"}, repeats=4)
    assert "".join(log) == "abcbcacababc"
    assert rounds.results == {name: [0, 1, 2, 3] for name in "abc"}
    assert rounds.failures == {}


def test_a_failed_name_has_a_reason_and_the_others_continue() -> None:
    log: list[str] = []
    rounds = interleave({"a": recorded(log, "a"), "b": recorded(log, "b", fails_after=1)}, repeats=3)
    assert rounds.failures == {"b": "b ran out of memory"}
    assert rounds.results["a"] == [0, 1, 2]
    assert log == ["a", "b", "a", "a"]


def test_each_turn_is_announced() -> None:
    announced: list[tuple[int, str, int]] = []
    turns = {"a": lambda: 1, "b": lambda: 2}
    interleave(turns, repeats=2, before_turn=lambda *turn: announced.append(turn))
    assert announced == [(0, "a", 0), (0, "b", 1), (1, "b", 2), (1, "a", 3)]
