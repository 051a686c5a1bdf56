"""A study of steps from its request to its tables, with processes that return results at once."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_opt import machine
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.storage.page_cache import Residency
from imagenet_opt.probe.samples import Samples
from imagenet_opt.study.compare import compare
from imagenet_opt.study.losses import Losses
from imagenet_opt.study.steps import begin, run
from imagenet_opt.study.table import tables
from tests.study.studies import TINY, small_request
from tests.study.turns import Processes, Words, measured, steps_study

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


def test_a_first_row_that_fails_ends_the_study_with_the_command_to_mend(tmp_path: Path, turns: Processes) -> None:
    turns.fails = lambda words, number: True
    study = steps_study(tmp_path, STEPS, start=["seed=3"])
    with pytest.raises(ConfigError, match=r"start, .*: out of memory; .* python train.py data=demo .*seed"):
        measured(study)


def test_gaps_and_failures_are_printed_at_once(
    tmp_path: Path, turns: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    turns.change = lambda words, turn: replace(turn, kernel_seconds=0.5 * turn.step_seconds)
    turns.fails = lambda words, number: number == 2
    measured(steps_study(tmp_path, STEPS))
    gain, failure = capsys.readouterr().err.splitlines()
    assert "closing the gaps gives at most 2.00 times the speed" in gain
    assert failure == "fused failed: out of memory"


def test_if_the_first_row_fails_later_the_rounds_before_count(tmp_path: Path, turns: Processes) -> None:
    study = steps_study(tmp_path, STEPS, repeats=4)
    turns.fails = lambda words, number: number > 6 and words == study.rows[0].overrides
    speeds = measured(study)
    assert {name: len(row) for name, row in speeds.turns.items()} == {"start": 2, "fused": 2, "freed": 2}
    results = compare(speeds.rows, speeds.turns, speeds.failures, Losses())
    table, _, details, _ = tables(study, results, speeds.ended)
    assert any(note.startswith("Measuring ended in round 3, as start failed") for note in details.notes)
    assert table.texts()[1][2] == "1.50 x"
    turns.fails = lambda words, number: False
    assert {len(row) for row in measured(study).turns.values()} == {4}, "the same command measures the missing rounds"


def test_with_a_budget_a_row_that_fails_later_is_left_out_and_the_others_go_on(
    tmp_path: Path, turns: Processes
) -> None:
    turns.fails = lambda words, number: FREED not in words and FUSED in words and number > 3
    speeds = measured(steps_study(tmp_path, STEPS, repeats=None, budget_seconds=0.0))
    assert speeds.failures == {"fused": "in round 2: out of memory"}
    assert {name: len(row) for name, row in speeds.turns.items()} == {"start": 2, "freed": 2}


def test_an_undecided_gain_estimates_the_time_that_would_decide_it(tmp_path: Path, turns: Processes) -> None:
    rates = iter([0.98, 1.02])
    turns.change = lambda words, turn: replace(turn, full=500 * (next(rates, 1.0) if FUSED in words else 1.0))
    speeds = measured(steps_study(tmp_path, STEPS[:1]))
    slow = {name: [replace(turn, seconds=10.0) for turn in row] for name, row in speeds.turns.items()}
    worth = compare(speeds.rows, slow, {}, Losses())[1].worth
    assert worth["compute"].verdict == "faster" and worth["full"].verdict == "undecided"
    assert worth["full"].more_seconds >= 20 and str(worth["full"]).endswith(" more")


def test_a_row_that_fails_later_is_named_if_others_build_on_it(tmp_path: Path, turns: Processes) -> None:
    study = steps_study(tmp_path, STEPS, repeats=2)
    turns.fails = lambda words, number: number > 3 and words == study.rows[1].overrides
    speeds = measured(study)
    table, _, details, _ = tables(study, compare(speeds.rows, speeds.turns, speeds.failures, Losses()))
    assert any(note.startswith("freed was measured on top of fused, which failed later") for note in details.notes)
    assert table.texts()[2][2] == "1.50 x"


def test_overrides_without_effect_are_printed_beforehand(
    tmp_path: Path, small: Words, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    steps = [STEPS[0], {"name": "mixed", "overrides": ["trainer.precision=mixed"]}]
    request = small_request("ladder", tmp_path, *small, "trainer.precision=bf16-mixed", steps=steps)
    assert begin(request)[0].plan.absent.keys() == {"mixed"}
    replaced = "study=ladder replaces overrides of the command line: trainer.precision=bf16-mixed"
    assert capsys.readouterr().err.count(replaced) == 1


@pytest.mark.parametrize(("share", "available", "cold"), [(1.0, 0, False), (0.0, 10**12, False), (0.0, 0, True)])
def test_files_are_read_from_storage_only_if_memory_has_no_room_for_them(
    share: float,
    available: int,
    cold: bool,
    tmp_path: Path,
    small: Words,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Samples, "residency", lambda self: Residency(share, "mincore"))
    monkeypatch.setattr(machine, "available_memory", lambda: available)
    assert begin(small_request("ladder", tmp_path, *small, steps=STEPS))[0].cold == cold
    assert ("reading the files of the study into memory" in capsys.readouterr().err) == (share < 1 and not cold)


@pytest.mark.slow
def test_a_study_prints_its_plan_and_a_stopped_study_resumes(
    tmp_path: Path, small: Words, turns: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    request = small_request("ladder", tmp_path, *small, steps=[*STEPS, {"name": "pinned", "needs": "gpu"}])

    def stopped(words: Words, number: int) -> bool:
        if number == 3:
            raise KeyboardInterrupt
        return False

    turns.fails = stopped
    with pytest.raises(KeyboardInterrupt):
        run(request)
    printed = capsys.readouterr().err
    assert "left out, as there is no GPU here: pinned" in printed and "3 rows, 2 rounds" in printed
    assert "from an earlier run" not in printed and "2 measurements are kept" in printed
    turns.fails = lambda words, number: False
    tables_of_all = run(request)
    assert "2 measurements are kept from an earlier run" in capsys.readouterr().err
    assert len(turns.jobs) == 3 + 4, "stored turns are not measured again"
    assert tables_of_all[0].texts()[1][:3] == ["fused", "1,000 -> 1,500", "1.50 x"]
    other = replace(request, options=request.options | {"steps": STEPS[:1]})
    run(other)
    assert len(turns.jobs) == 7 + 4, "beside other steps, turns are measured anew"


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("optimizer=lamb", "chooses a file of a group"),
        ("+callbacks=ema", "chooses a file of a group"),
        ("~callbacks.mixing", "removes"),
    ],
)
def test_apply_refuses_steps_that_an_experiment_cannot_contain(
    word: str, reason: str, tmp_path: Path, own_conf: Path
) -> None:
    steps = [{"name": "seed", "overrides": ["seed=1"]}, {"name": "a", "overrides": [word]}]
    with pytest.raises(ConfigError, match=rf"--apply: .*{reason}.*; leave --apply out"):
        begin(steps_study(tmp_path, steps, apply=True).request)


def test_apply_needs_a_folder_of_experiments_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "experiment")
    with pytest.raises(ConfigError, match="experiment cannot be written"):
        begin(steps_study(tmp_path, STEPS, apply=True).request)
