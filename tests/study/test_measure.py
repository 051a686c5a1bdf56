import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from imagenet_opt.study.steps.compare import compare
from imagenet_opt.study.steps.losses import Losses
from imagenet_opt.study.steps.measure import begin, run
from imagenet_opt.study.steps.table import tables
from imagenet_opt.study.steps.turn import Speed, isolated

from imagenet_opt import machine
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import Deadline, TurnFailed
from imagenet_opt.measure.storage.page_cache import Residency
from imagenet_opt.probe.isolated import Hung
from imagenet_opt.probe.samples import Samples
from imagenet_opt.study.steps import speeds as speeds_module
from imagenet_opt.study.steps import turn
from tests.study.studies import TINY, small_request
from tests.study.turns import Processes, Words, measured, steps_study

FUSED = "optimizer.fused=true"
STEPS: list[dict[str, Any]] = [
    {"name": "fused", "overrides": [FUSED]},
    {"name": "freed", "overrides": ["model.set_to_none=true"]},
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
    with pytest.raises(ConfigError, match=r"first row, start, .*: out of memory; .* python train.py data=demo .*seed"):
        measured(study)


def test_gaps_and_failures_are_printed_once_and_at_once(
    tmp_path: Path, turns: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    turns.change_alone = lambda words, speed: speed | {"step_seconds": 0.1, "kernel_seconds": 0.05}
    turns.fails = lambda words, number: number == 2
    measured(steps_study(tmp_path, STEPS), lambda label: print(label, file=sys.stderr))
    full, alone = "full pipeline: ", "network alone: "
    printed = capsys.readouterr().err.splitlines()
    gain = printed.pop(6)
    assert "closing the gaps gives at most 2.00 times the speed" in gain
    assert printed == [
        *(f"round 1 of 2: {full}{name}" for name in ("start", "fused")),
        "fused failed: out of memory",
        f"round 1 of 2: {full}freed",
        *(f"round 1 of 2: {alone}{name}" for name in ("start", "freed")),
        *(f"round 2 of 2: {what}{name}" for what in (full, alone) for name in ("freed", "start")),
    ]


@pytest.mark.slow
def test_if_the_first_row_fails_later_the_rounds_before_count(tmp_path: Path, turns: Processes) -> None:
    study = steps_study(tmp_path, STEPS, repeats=4)
    start = study.rows[0].overrides
    turns.fails = lambda words, number: number > 6 and words == start
    speeds = measured(study)
    assert len(turns.jobs) == 9 and turns.jobs[-1].overrides == start
    assert {name: len(row) for name, row in speeds.turns.items()} == {"start": 2, "fused": 2, "freed": 2}
    table, _, details, _ = tables(study, compare(speeds, Losses()), speeds.ended)
    assert any(note.startswith("Measuring ended in round 3, as start failed") for note in details.notes)
    assert table.texts()[1][2] == "1.50 x"
    turns.fails = lambda words, number: False
    measured(study)
    assert len(turns.jobs) == 9 + 4, "the failed turn and the turns after it"


def test_rows_change_their_order_from_round_to_round(tmp_path: Path, turns: Processes) -> None:
    """A row gains or loses some percent by its place, which must not add up over the rounds."""
    names = [f"step {i}" for i in range(9)]
    study = steps_study(tmp_path, [{"name": name, "overrides": [f"seed={name[-1]}"]} for name in names], repeats=20)
    measured(study)
    orders = [[job.overrides for job in turns.jobs[i : i + 10]] for i in range(0, 200, 10)]
    assert all(first == second[::-1] for first, second in zip(orders[::2], orders[1::2], strict=True))
    middles = {row: sum(order.index(row) for order in orders[::2]) / 10 for row in orders[0]}
    assert all(abs(place - 4.5) < 2 for place in middles.values())


def test_with_a_budget_all_rows_have_rounds_as_long_as_there_is_time(
    tmp_path: Path, turns: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn takes 10 s by the study's clock: a round of three rows in both measures takes 60 s."""
    now = [0.0]
    monkeypatch.setattr(turn, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(speeds_module, "Deadline", partial(Deadline, clock=lambda: now[0]))

    def passes(words: Words, speed: Speed) -> Speed:
        now[0] += 10.0
        return speed

    turns.change = turns.change_alone = passes
    study = steps_study(tmp_path, STEPS, repeats=None, budget_seconds=250.0)
    assert {len(row) for row in measured(study).turns.values()} == {4}
    more = replace(study, request=replace(study.request, budget_seconds=70.0))
    assert {len(row) for row in measured(more).turns.values()} == {5}, "a stored round takes no time"


def test_with_a_budget_a_row_that_fails_later_is_left_out_and_the_others_go_on(
    tmp_path: Path, turns: Processes
) -> None:
    turns.fails = lambda words, number: "model.set_to_none=true" not in words and FUSED in words and number > 3
    speeds = measured(steps_study(tmp_path, STEPS, repeats=None, budget_seconds=0.0))
    assert speeds.failures == {"fused": "in round 2: out of memory"}
    assert speeds.turns.keys() == {"start", "freed"} and len(speeds.turns["start"]) == 2


def test_without_time_for_more_all_rows_have_two_rounds(tmp_path: Path, turns: Processes) -> None:
    """An undecided comparison then estimates the time that would decide it."""
    rates = iter([0.98, 1.02])
    turns.change = lambda words, speed: speed | ({"full": 500 * next(rates, 1.0)} if FUSED in words else {})
    speeds = measured(steps_study(tmp_path, STEPS, repeats=None, budget_seconds=0.0))
    for speed in (speed for row in speeds.turns.values() for speed in row):
        speed["turn_seconds"] = 10.0
    worth = compare(speeds, Losses())[1].worth
    assert [len(row) for row in speeds.turns.values()] == [2, 2, 2]
    assert worth["compute"].verdict == "faster" and str(worth["full"]).endswith(" more")
    assert worth["full"].more_seconds >= 20


def test_turns_beside_other_steps_are_not_reused(tmp_path: Path, turns: Processes) -> None:
    for steps, num_turns in ((STEPS[:1], 4), (STEPS, 6), (STEPS, 0)):
        before = len(turns.jobs)
        measured(steps_study(tmp_path, steps))
        assert len(turns.jobs) - before == num_turns


def test_a_row_that_fails_later_is_named_if_others_build_on_it(tmp_path: Path, turns: Processes) -> None:
    study = steps_study(tmp_path, STEPS, repeats=2)
    fused = study.rows[1].overrides
    turns.fails = lambda words, number: number > 3 and words == fused
    table, _, details, _ = tables(study, compare(measured(study), Losses()))
    assert (
        "freed was measured on top of fused, which failed later: the ratio includes the failed steps." in details.notes
    )
    assert table.texts()[2][2] == "1.50 x"


def test_a_row_whose_network_fails_alone_keeps_its_step_in_rows_above(tmp_path: Path, turns: Processes) -> None:
    """The rows above it already have its step, so they keep it and the table says so."""
    turns.fails_alone = lambda words: FUSED in words and "model.set_to_none=true" not in words
    study = steps_study(tmp_path, STEPS)
    speeds = measured(study)
    assert speeds.failures == {"fused": "out of memory"}
    assert [row.overrides for row in speeds.rows] == [row.overrides for row in study.rows]
    notes = tables(study, compare(speeds, Losses()))[2].notes
    assert "freed was measured on top of fused, which failed later: the ratio includes the failed steps." in notes


def test_a_turn_may_compile_for_an_hour_before_it_counts_as_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    def hang(function: str, job: Any, *, limit_seconds: float, environment: dict[str, str]) -> Any:
        limits.append(limit_seconds)
        raise Hung("no end")

    monkeypatch.setattr(turn, "call_isolated", hang)
    with pytest.raises(TurnFailed, match=r"no end; it hangs .* leave it out in a study of your own"):
        isolated("speed", None, tmp_path, timed_seconds=8)
    assert limits == [3680]


def test_overrides_without_effect_are_printed_beforehand(
    tmp_path: Path, small: Words, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    steps = [STEPS[0], {"name": "mixed", "overrides": ["trainer.precision=mixed"]}]
    request = small_request("ladder", tmp_path, *small, "trainer.precision=bf16-mixed", steps=steps)
    assert begin(request)[0].plan.absent == {"mixed": "mixed is 32-true on this CPU"}
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
    monkeypatch.setattr(Samples, "residency", lambda self: Residency(share, "cachestat"))
    monkeypatch.setattr(machine, "available_memory", lambda: available)
    assert begin(small_request("ladder", tmp_path, *small, steps=STEPS))[0].cold == cold
    assert ("reading the files of the study into memory" in capsys.readouterr().err) == (share < 1 and not cold)


@pytest.mark.slow
def test_a_study_prints_its_plan_and_a_stopped_study_resumes(
    tmp_path: Path, small: Words, turns: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    request = small_request("ladder", tmp_path, *small, steps=[*STEPS, {"name": "pinned", "needs": "gpu"}])

    def stopped(words: Words, number: int) -> bool:
        if number == 4:
            raise KeyboardInterrupt
        return number in (2, 3)

    turns.fails = stopped
    with pytest.raises(KeyboardInterrupt):
        run(request)
    beforehand, _, afterwards = capsys.readouterr().err.partition("measuring: ")
    rounds = "3 rows, 2 rounds, each of the network alone and of the full pipeline"
    plan = f"left out, as there is no GPU here: pinned\n{rounds}\n"
    assert beforehand.endswith(plan)
    assert afterwards.endswith(
        f"\nstopped; 2 measurements are kept in {tmp_path}: run the same command again to resume\n"
    )
    turns.fails = lambda words, number: False
    run(request)
    beforehand, _, afterwards = capsys.readouterr().err.partition("measuring: ")
    assert beforehand.endswith(f"{plan}resuming: 2 measurements are kept from an earlier run\n")
    assert afterwards.startswith("round 1 of 2: full pipeline: fused"), (
        "which had failed; the turn of the start is stored"
    )
    assert len(turns.jobs) == 4 + 5, "only the first turn of the start is reused, as freed now builds on fused"


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
