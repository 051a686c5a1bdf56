"""A turn that fails ends no other, and nothing that was measured is lost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_opt.cli.study_request import Request
from imagenet_opt.cli.study_rounds import rounds_of
from imagenet_opt.errors import ConfigError, DatasetNotFound, ImagenetOptError, OutOfMemory
from imagenet_opt.measure.interleave import TurnFailed

REQUEST = Request("mine", "a title", "scaling", {}, (), 3, 1.0, 0, None, Path("runs"))


def turn(*answers: int | Exception) -> Callable[[], int]:
    coming = iter(answers)

    def answer() -> int:
        found = next(coming)
        if isinstance(found, Exception):
            raise found
        return found

    return answer


def test_an_error_of_a_later_round_is_that_of_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    turns = {"1": turn(10, 11, 12), "4": turn(30, OutOfMemory("lower data.batch_size"))}
    found = rounds_of(turns, REQUEST, "processes: {}")
    assert found.results == {"1": [10, 11, 12], "4": [30]}
    assert found.reasons == ("4: lower data.batch_size",)
    assert "measuring: processes: 4" in capsys.readouterr().err


def test_before_anything_is_measured_the_error_is_the_users() -> None:
    with pytest.raises(DatasetNotFound, match="is nowhere"):
        rounds_of({"1": turn(DatasetNotFound("data.root is nowhere")), "2": turn(1)}, REQUEST)


@pytest.mark.parametrize("error", [TurnFailed("killed by signal 9"), ImagenetOptError("killed by signal 9")])
def test_where_all_fail_one_reason_is_told(error: Exception) -> None:
    with pytest.raises(ConfigError, match="study=mine: 1: killed by signal 9"):
        rounds_of({"1": turn(1, error)}, replace(REQUEST, repeats=2))
