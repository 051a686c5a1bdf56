"""A failed turn ends no other turn, and no result is lost or measured again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_opt.errors import ConfigError, DatasetNotFound, ImagenetOptError, OutOfMemory
from imagenet_opt.measure.stats.rounds import Rounds, TurnFailed
from imagenet_opt.measure.storage.parallel_reads import ReadPass
from imagenet_opt.study.kinds.queue import Drained
from imagenet_opt.study.kinds.scaling import StepRate
from imagenet_opt.study.kinds.streams import Trained
from imagenet_opt.study.kinds.torchscript import Found
from imagenet_opt.study.request import Request
from imagenet_opt.study.turns import CachedTurns, run_rounds, what_torch_refuses
from tests.study.studies import small_request


@pytest.fixture
def study(tmp_path: Path) -> Request:
    return replace(small_request("scaling", tmp_path), name="mine", repeats=3)


def turn(*answers: int | BaseException) -> Callable[[], int]:
    coming = iter(answers)

    def answer() -> int:
        result = next(coming)
        if isinstance(result, BaseException):
            raise result
        return result

    return answer


def test_a_failure_in_a_later_round_ends_only_its_row(study: Request, capsys: pytest.CaptureFixture[str]) -> None:
    turns = {"1": turn(10, 11, 12), "4": turn(30, OutOfMemory("lower data.batch_size"))}
    rounds = run_rounds(turns, study, int, label="processes: {}")
    assert rounds.results == {"1": [10, 11, 12], "4": [30]}
    assert rounds.reasons == ("4: lower data.batch_size",)
    assert capsys.readouterr().err.splitlines() == [
        *("measuring: round 1 of 3: processes: 1", "measuring: round 1 of 3: processes: 4"),
        *("measuring: round 2 of 3: processes: 4", "measuring: round 2 of 3: processes: 1"),
        "measuring: round 3 of 3: processes: 1",
    ]


def test_an_error_before_any_result_is_raised_as_it_is(study: Request) -> None:
    with pytest.raises(DatasetNotFound, match="is nowhere"):
        run_rounds({"1": turn(DatasetNotFound("data.root is nowhere")), "2": turn(1)}, study, int)


@pytest.mark.parametrize("error", [TurnFailed("killed by signal 9"), ImagenetOptError("killed by signal 9")])
def test_if_all_fail_the_error_has_one_reason(study: Request, error: Exception) -> None:
    with pytest.raises(ConfigError, match="study=mine: 1: killed by signal 9"):
        run_rounds({"1": turn(1, error)}, replace(study, repeats=2), int)


def test_a_stopped_study_measures_only_the_missing_turns(study: Request, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C in the second round, which begins with the second turn."""
    with pytest.raises(KeyboardInterrupt):
        run_rounds({"a": turn(10), "b": turn(20, KeyboardInterrupt())}, study, int)
    kept = f"stopped; 2 measurements are kept in {study.folder}: run the same command again to resume"
    assert capsys.readouterr().err.splitlines()[-1] == kept
    rounds = run_rounds({"a": turn(11, 12), "b": turn(21, 22)}, study, int)
    assert rounds == Rounds({"a": [10, 11, 12], "b": [20, 21, 22]})
    assert capsys.readouterr().err.splitlines() == [
        "resuming: 2 measurements are kept from an earlier run",
        *(f"measuring: round {number} of 3: {name}" for number, name in ((2, "b"), (2, "a"), (3, "a"), (3, "b"))),
    ]
    assert run_rounds({"a": turn(), "b": turn()}, study, int) == rounds
    more = run_rounds({"a": turn(13), "b": turn(23)}, replace(study, repeats=4), int)
    assert more.results == {"a": [10, 11, 12, 13], "b": [20, 21, 22, 23]}


@pytest.mark.parametrize(
    "change",
    [{"options": {"processes": [1, 8]}}, {"overrides": ("data.batch_size=7",)}, {"seconds": 9.0}, {"kind": "read"}],
)
def test_results_of_other_settings_are_not_reused(
    study: Request, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_rounds({"a": turn(1, 2, 3)}, study, int)
    capsys.readouterr()
    assert run_rounds({"a": turn(4, 5, 6)}, replace(study, **change), int).results == {"a": [4, 5, 6]}
    assert "all are repeated" in capsys.readouterr().err.splitlines()[0]
    assert run_rounds({"a": turn()}, study, int).results == {"a": [1, 2, 3]}


def test_results_of_another_subject_are_not_reused(study: Request) -> None:
    for size in (32, 64):
        rounds = run_rounds({"a": turn(size, size, size)}, study, int, subject={"image_size": size})
        assert rounds.results == {"a": [size] * 3}


@pytest.mark.parametrize(
    "answer",
    [
        0.25,
        StepRate(10.5, 0.1),
        Trained(10.5, None),
        Drained(3, (0.0, 0.5), 0.25),
        ReadPass(1.5, 2, 3, 4, num_unread=5, is_cold=True),
        Found(0.5, 2.0, 6.9, again=True),
    ],
)
def test_a_stored_result_equals_the_measured_result(study: Request, answer: Any) -> None:
    assert CachedTurns(study, type(answer)).take("a", lambda: answer) == answer
    assert CachedTurns(study, type(answer)).take("a", turn()) == answer


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("not implemented for 'Half'\nException raised from here"), "^not implemented for 'Half'$"),
        (RuntimeError(), "^RuntimeError$"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "the GPU's memory does not hold"),
    ],
)
def test_an_error_of_torch_becomes_the_reason_of_a_failed_turn(error: Exception, reason: str) -> None:
    with pytest.raises(TurnFailed, match=reason), what_torch_refuses():
        raise error
