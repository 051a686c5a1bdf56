"""Searches among settings with known rates, without noise and with known noise."""

from collections.abc import Callable
from random import Random

import pytest

from imagenet_opt.measure.stats.rounds import OutOfTime, TurnFailed
from imagenet_opt.tuning.climb import Setting, climb, each

START = {"data.num_workers": 2, "data.prefetch_factor": 4}


def workers(best: Setting) -> list[Setting]:
    return [best | {"data.num_workers": num} for num in (8, 6, 4) if num != best["data.num_workers"]]


def ahead(best: Setting) -> list[Setting]:
    return [best | {"data.prefetch_factor": num} for num in (8, 2)]


@pytest.mark.parametrize(
    ("rate", "enough", "best", "tried"),
    [
        (lambda workers, ahead: 1000.0, 1000, (2, 4), [(2, 4)]),
        (lambda workers, ahead: 100.0 * workers, 750, (8, 4), [(2, 4), (8, 4), (6, 4)]),
        # 2 % is not worth proving
        (lambda workers, ahead: 100.0 + 2 * (ahead == 8), None, (2, 4), [(2, 4), (8, 4), (2, 8)]),
    ],
)
def test_a_search_ends_at_a_sufficient_rate_and_an_axis_at_the_first_setting_without_gain(
    rate: Callable[[int, int], float], enough: float | None, best: tuple[int, int], tried: list[tuple[int, int]]
) -> None:
    climbed = climb(START, [[workers], [ahead]], lambda setting: rate(*setting.values()), enough=enough)
    assert tuple(climbed.best.values()) == best and climbed.is_enough == (enough is not None)
    assert list(climbed.rates) == [f"num_workers={one} prefetch_factor={other}" for one, other in tried]
    assert climbed.changes == ({"data.num_workers": 8} if best[0] == 8 else {})


def one_by_one(**rates: list[float]) -> Callable[[Setting], float]:
    """The next rate of a setting; a failed turn at the end."""
    left = {name: iter(values) for name, values in rates.items()}

    def turn(setting: Setting) -> float:
        if (rate := next(left[setting["x"]], None)) is None:
            raise TurnFailed("read error")
        return rate

    return turn


def test_a_lucky_turn_is_not_kept() -> None:
    turn = one_by_one(now=[100.0, 130.0, 100.0, 100.0, 100.0], fast=[120.0, 100.0, 100.0, 100.0, 140.0])
    climbed = climb({"x": "now"}, [each([{"x": "fast"}])], turn)
    assert climbed.changes == {} and len(climbed.rates["x=fast"]) == 1 + 4
    assert climbed.undecided == ["x=fast"] and not climbed.lacks_time


def test_failed_settings_are_left_out_and_settings_without_time_are_named() -> None:
    def rate(setting: Setting) -> float:
        if setting["x"] == "failing":
            raise TurnFailed("no memory for the workers")
        if setting["x"] == "late":
            raise OutOfTime
        return 100.0

    climbed = climb({"x": "now"}, [each([{"x": "failing"}, {"x": "late"}, {"x": "later"}])], rate)
    late, slow = "not tried: budget", "not 3 % faster in one turn"
    assert climbed.lacks_time and climbed.changes == {} and list(climbed.rates) == ["x=now", "x=later"]
    outcomes = {"x=now": "as it was", "x=failing": "no memory for the workers", "x=late": late, "x=later": slow}
    assert climbed.outcomes == outcomes


def test_a_search_among_equal_settings_seldom_names_one() -> None:
    """200 searches among eight settings that differ by noise alone: at most one in twenty may err, plus a margin."""
    random = Random(8)
    stages = [each({"x": num} for num in range(8))]
    searches = [climb({"x": 99}, stages, lambda setting: random.gauss(100, 5)) for _ in range(200)]
    assert sum(bool(climbed.changes) for climbed in searches) / 200 < 0.08
