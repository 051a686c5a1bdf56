"""A study without a result is an error, and no result is measured again."""

from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.study.comparison import Setting, run_rounds
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
