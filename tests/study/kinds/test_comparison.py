"""A failed turn ends no other turn, no result is measured again, and ratios are those of a paired t test."""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.display.table import Column
from imagenet_opt.errors import ConfigError, OutOfMemory
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.study.kinds.comparison import Comparison, Setting, run_rounds
from imagenet_opt.study.plan import Request
from tests.study.studies import small_request


@pytest.fixture
def study(tmp_path: Path) -> Request:
    return replace(small_request("scaling", tmp_path), name="mine", repeats=3)


def turn(*answers: int | BaseException) -> Setting[int]:
    coming = iter(answers)

    def answer() -> int:
        result = next(coming)
        if isinstance(result, BaseException):
            raise result
        return result

    return Setting((), answer)


@pytest.mark.parametrize("error", [OutOfMemory("no room"), RuntimeError("no room\nof torch")])
def test_a_failure_in_a_later_round_ends_only_its_row(
    study: Request, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = run_rounds({"a": turn(10, 11, 12), "b": turn(30, error)}, study, int)
    assert rounds.complete == {"a": [10, 11, 12]} and rounds.reasons == ("b: no room",)
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == ["a", "b", "b", "a", "a"]


def test_a_study_without_a_result_is_an_error(study: Request) -> None:
    with pytest.raises(ConfigError, match="study=mine: a: killed by signal 9"):
        run_rounds({"a": turn(1, TurnFailed("killed by signal 9"))}, study, int)


def test_a_stopped_study_measures_only_what_is_missing(study: Request, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C in the second round, which begins with the second setting."""
    with pytest.raises(KeyboardInterrupt):
        run_rounds({"a": turn(10), "b": turn(20, KeyboardInterrupt())}, study, int)
    assert "2 measurements are kept" in capsys.readouterr().err.splitlines()[-1]
    rounds = run_rounds({"a": turn(11, 12), "b": turn(21, 22)}, study, int)
    assert rounds.results == {"a": [10, 11, 12], "b": [20, 21, 22]}
    more = run_rounds({"a": turn(13), "b": turn(23)}, replace(study, repeats=4), int)
    assert more.results == {"a": [10, 11, 12, 13], "b": [20, 21, 22, 23]}


def compared(results: dict[str, list[float]], failures: dict[str, str] | None = None) -> Comparison[float]:
    nothing: Callable[[], float] = lambda: 0.0  # noqa: E731
    settings = {name: Setting((name.upper(),), nothing, against=None if name == "a" else "a") for name in results}
    mean = {Column("mean"): statistics.fmean}
    rounds = Rounds(results, failures or {})
    return Comparison("Made up", ("which",), "images/s", settings, rounds, more=mean)


def test_ratios_compare_within_rounds() -> None:
    """The machine was three times as fast in one round, which does not change the ratio: the mean of the logarithms,
    with the interval of a paired t test, whose t for six rounds is 2.5706."""
    alone, two = [100.0, 300.0, 100.0, 110.0, 90.0, 100.0], [90.0, 270.0, 85.0, 99.0, 81.0, 95.0]
    comparison = compared({"a": alone, "b": two, "c": []}, {"c": "killed by signal 9"})
    table = comparison.table("A note.")
    logs = [math.log(0.9)] * 4 + [math.log(0.85), math.log(0.95)]
    reach = 2.5706 * statistics.stdev(logs) / math.sqrt(6)
    low, high = (math.exp(statistics.fmean(logs) + sign * reach) for sign in (-1, 1))
    rows: Any = table.rows
    first, second, third = rows
    assert first == ("A", 100.0, "90-300", None, None, None, None, pytest.approx(statistics.fmean(alone)))
    assert second[:2] == ("B", 92.5) and second[3:6] == ("a", pytest.approx(0.9, rel=1e-3), f"{low:.2f}-{high:.2f}")
    assert second[6] == "slower" and third == ("C", *[None] * 7)
    assert table.notes[0] == "c: killed by signal 9" and table.notes[-1] == "A note."
    assert table.finding == "Most images/s: a, 100."
    assert table.plots[0].kind == "bars" and table.plots[0].series[0].x == ("a", "b")


def test_without_the_reference_nothing_is_compared() -> None:
    comparison = compared({"a": [], "b": [10.0, 11.0]}, {"a": "ended with status 1"})
    assert comparison.gains == {} and comparison.table().rows[1][3:7] == (None,) * 4
