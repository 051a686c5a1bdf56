"""A turn that fails ends no other, and nothing that was measured is lost or measured again."""

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
def asked(tmp_path: Path, checked: None) -> Request:
    return replace(small_request("scaling", tmp_path), name="mine", repeats=3)


def turn(*answers: int | BaseException) -> Callable[[], int]:
    coming = iter(answers)

    def answer() -> int:
        found = next(coming)
        if isinstance(found, BaseException):
            raise found
        return found

    return answer


def test_an_error_of_a_later_round_is_that_of_its_row(asked: Request, capsys: pytest.CaptureFixture[str]) -> None:
    turns = {"1": turn(10, 11, 12), "4": turn(30, OutOfMemory("lower data.batch_size"))}
    found = run_rounds(turns, asked, int, label="processes: {}")
    assert found.results == {"1": [10, 11, 12], "4": [30]}
    assert found.reasons == ("4: lower data.batch_size",)
    assert capsys.readouterr().err.splitlines() == [
        *("measuring: round 1 of 3: processes: 1", "measuring: round 1 of 3: processes: 4"),
        *("measuring: round 2 of 3: processes: 4", "measuring: round 2 of 3: processes: 1"),
        "measuring: round 3 of 3: processes: 1",
    ]


def test_before_anything_is_measured_the_error_is_the_users(asked: Request) -> None:
    with pytest.raises(DatasetNotFound, match="is nowhere"):
        run_rounds({"1": turn(DatasetNotFound("data.root is nowhere")), "2": turn(1)}, asked, int)


@pytest.mark.parametrize("error", [TurnFailed("killed by signal 9"), ImagenetOptError("killed by signal 9")])
def test_where_all_fail_one_reason_is_told(asked: Request, error: Exception) -> None:
    with pytest.raises(ConfigError, match="study=mine: 1: killed by signal 9"):
        run_rounds({"1": turn(1, error)}, replace(asked, repeats=2), int)


def test_only_the_turns_that_are_missing_are_measured(asked: Request) -> None:
    """Ctrl-C in the second round, which begins with the second one."""
    with pytest.raises(KeyboardInterrupt):
        run_rounds({"a": turn(10), "b": turn(20, KeyboardInterrupt())}, asked, int)
    found = run_rounds({"a": turn(11, 12), "b": turn(21, 22)}, asked, int)
    assert found == Rounds({"a": [10, 11, 12], "b": [20, 21, 22]})
    assert run_rounds({"a": turn(), "b": turn()}, asked, int) == found
    more = run_rounds({"a": turn(13), "b": turn(23)}, replace(asked, repeats=4), int)
    assert more.results == {"a": [10, 11, 12, 13], "b": [20, 21, 22, 23]}


def test_what_is_kept_is_said_and_not_announced(asked: Request, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_rounds({"a": turn(10), "b": turn(20, KeyboardInterrupt())}, asked, int)
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == f"stopped; 2 turns are kept in {asked.folder}: run the same command again to resume"
    run_rounds({"a": turn(11, 12), "b": turn(21, 22)}, asked, int)
    assert capsys.readouterr().err.splitlines() == [
        "resuming: 2 turns are kept from before",
        *(f"measuring: round {number} of 3: {name}" for number, name in ((2, "b"), (2, "a"), (3, "a"), (3, "b"))),
    ]
    run_rounds({"a": turn(1, 2, 3)}, replace(asked, seconds=9.0), int)
    assert "all turns are measured again" in capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"processes": [1, 8]}},
        {"overrides": ("data.batch_size=7",)},
        {"seconds": 9.0},
        {"kind": "read"},
    ],
)
def test_what_was_measured_with_other_settings_does_not_count(asked: Request, change: dict[str, Any]) -> None:
    run_rounds({"a": turn(1, 2, 3)}, asked, int)
    assert run_rounds({"a": turn(4, 5, 6)}, replace(asked, **change), int).results == {"a": [4, 5, 6]}
    assert run_rounds({"a": turn()}, asked, int).results == {"a": [1, 2, 3]}


def test_what_was_measured_of_another_subject_does_not_count(asked: Request) -> None:
    for size in (32, 64):
        found = run_rounds({"a": turn(size, size, size)}, asked, int, subject={"image_size": size})
        assert found.results == {"a": [size] * 3}


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
def test_what_turns_give_is_the_same_once_it_was_kept(asked: Request, answer: Any) -> None:
    assert CachedTurns(asked, type(answer)).take("a", lambda: answer) == answer
    assert CachedTurns(asked, type(answer)).take("a", turn()) == answer


def test_what_torch_refuses_is_its_reason() -> None:
    with pytest.raises(TurnFailed, match=r"^not implemented for 'Half'$"), what_torch_refuses():
        raise RuntimeError("not implemented for 'Half'\nException raised from here")
    with pytest.raises(TurnFailed, match=r"^RuntimeError$"), what_torch_refuses():
        raise RuntimeError
    with pytest.raises(TurnFailed, match="the GPU's memory does not hold it"), what_torch_refuses():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
