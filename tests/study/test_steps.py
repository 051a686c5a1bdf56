"""A study of steps from its request to its tables, with processes that return results at once."""

import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from imagenet_opt import machine
from imagenet_opt.cli.study import tables_of
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.storage.page_cache import Residency
from imagenet_opt.probe.samples import Samples
from imagenet_opt.study import turn
from imagenet_opt.study.file import Request
from imagenet_opt.study.plan import Study
from imagenet_opt.study.steps import begin, tables
from imagenet_opt.study.turn import RowResult, measure_speeds
from tests.study.studies import TINY, Processes, Words, cache_of, small_request, steps_study

FUSED, FREED = "optimizer.fused=true", "model.set_to_none=true"
STEPS: list[dict[str, Any]] = [
    {"name": "fused", "overrides": [FUSED]},
    {"name": "freed", "overrides": [FREED]},
]


@pytest.fixture
def turns(processes: Processes) -> Processes:
    processes.times = {FUSED: 1.5}
    return processes


@pytest.fixture
def small(tmp_path: Path) -> tuple[str, ...]:
    own = ("trainer.accelerator=cpu", f"data.cache_dir={tmp_path}", "data.num_train=64", "data.num_val=10")
    return (*TINY, *own)


def results_of(study: Study) -> dict[str, RowResult]:
    return {result.row.name: result for result in measure_speeds(study, cache_of(study))}


def begun(request: Request) -> Study:
    return begin(request.file, request)[0]


def test_a_first_row_that_fails_ends_the_study_with_the_command_to_mend(tmp_path: Path, turns: Processes) -> None:
    turns.fails = lambda words, number: True
    with pytest.raises(ConfigError, match=r"start, .*: out of memory; .* train\S* data=demo .*seed"):
        results_of(steps_study(tmp_path, STEPS, start=["seed=3"]))


@pytest.mark.parametrize("lengths", [{"repeats": 4}, {"repeats": None, "budget_seconds": 0.0}])
def test_a_row_that_fails_later_keeps_its_rounds(tmp_path: Path, turns: Processes, lengths: dict[str, Any]) -> None:
    turns.fails = lambda words, number: FREED not in words and FUSED in words and number > 3
    study = steps_study(tmp_path, STEPS, **lengths)
    results = results_of(study)
    num = lengths["repeats"] or 4
    assert {name: len(each.turns) for name, each in results.items()} == {"start": num, "fused": 1, "freed": num}
    *_, details = tables(study, list(results.values()), {})
    assert "fused failed in round 2: out of memory." in details.notes
    assert results["freed"].worth["full"].verdict == "undecided", "beside one round of the row before"
    turns.fails = lambda words, number: False
    assert {len(each.turns) for each in results_of(study).values()} == {num}, "the same command measures the rest"


def test_a_budget_below_four_rounds_is_refused_after_one_turn_and_no_budget_takes_four(
    tmp_path: Path, turns: Processes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each turn takes 10 s by its clock, and 3 rows have 12 turns in 4 rounds."""
    monkeypatch.setattr(turn, "time", SimpleNamespace(perf_counter=count(step=10).__next__))
    study = steps_study(tmp_path, STEPS, repeats=None, budget_seconds=100.0)
    with pytest.raises(ConfigError, match=r"about 1\.8 min at 10\.0 s a turn.* --budget 2m"):
        results_of(study)
    assert len(turns.jobs) == 1
    unlimited = replace(study, request=replace(study.request, budget_seconds=0.0))
    assert {len(each.turns) for each in results_of(unlimited).values()} == {4}
    assert "about 1.8 min" in capsys.readouterr().err and len(turns.jobs) == 12


@pytest.mark.parametrize(("share", "available", "cold"), [(1.0, 0, False), (0.0, 10**12, False), (0.0, 0, True)])
def test_files_are_read_from_storage_only_if_memory_has_no_room_for_them(
    share: float, available: int, cold: bool, tmp_path: Path, small: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Samples, "residency", lambda self: Residency(share, "mincore"))
    monkeypatch.setattr(Samples, "warm", lambda self, seconds: None)
    monkeypatch.setattr(machine, "available_memory", lambda: available)
    assert begun(small_request("ladder", tmp_path, *small, steps=STEPS)).cold == cold


@pytest.mark.slow
def test_a_study_prints_its_plan_and_a_stopped_study_resumes(
    tmp_path: Path,
    small: Words,
    turns: Processes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    more = [{"name": "pinned", "needs": "gpu"}, {"name": "mixed", "overrides": ["trainer.precision=mixed"]}]
    words = (*small, "trainer.precision=bf16-mixed")
    request = small_request("ladder", tmp_path, *words, steps=[*STEPS, *more])

    def stopped(words: Words, number: int) -> bool:
        if number == 3:
            raise KeyboardInterrupt
        return False

    turns.fails = stopped
    with pytest.raises(KeyboardInterrupt):
        tables_of(request)
    printed = capsys.readouterr().err
    assert "there is no GPU here: pinned" in printed and "on this CPU: mixed" in printed and "3 rows" in printed
    assert "replaces overrides of the command line: trainer.precision=bf16-mixed" in printed
    assert "from an earlier run" not in printed and "2 measurements are kept" in printed
    turns.fails = lambda words, number: False
    shown = tables_of(request)
    assert "2 measurements are kept from an earlier run" in capsys.readouterr().err
    assert len(turns.jobs) == 3 + 4, "stored turns are not measured again"
    assert shown[0].texts()[1][:3] == ["fused", "1,000 -> 1,500", "1.50 x"]
    tables_of(small_request("ladder", tmp_path, *words, steps=STEPS[:1]))
    assert len(turns.jobs) == 7 + 4, "beside other steps, turns are measured anew"


def test_apply_refuses_what_it_could_not_write(tmp_path: Path, own_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("optimizer=lamb", "~callbacks.mixing"):
        with pytest.raises(ConfigError, match="--apply: "):
            begun(steps_study(tmp_path, [{"name": "a", "overrides": [word]}], apply=True).request)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "experiment")
    with pytest.raises(ConfigError, match="experiment cannot be written"):
        begun(steps_study(tmp_path, STEPS, apply=True).request)
