import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_opt import machine
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.measure.storage.page_cache import Residency
from imagenet_opt.probe.isolated import Hung
from imagenet_opt.probe.samples import Samples
from imagenet_opt.study.steps import pipelines, turn
from imagenet_opt.study.steps import speeds as speeds_module
from imagenet_opt.study.steps.compare import compare, rates_of
from imagenet_opt.study.steps.losses import Losses
from imagenet_opt.study.steps.measure import begin, run
from imagenet_opt.study.steps.table import tables
from imagenet_opt.study.steps.turn import Speed, isolated
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
    turns.fails = lambda words, number: number in (2, 3)
    measured(steps_study(tmp_path, STEPS), lambda label: print(label, file=sys.stderr))
    first, second, apart, again, failed, third, alone, gain, *others = capsys.readouterr().err.splitlines()
    full, compute = "full pipeline: ", "network alone"
    together = ", then 2 rows take turns"
    labels = ("start", f"fused{together}", "fused")
    assert (first, second, again) == tuple(f"round 1 of 2: {full}{name}" for name in labels)
    assert apart == "fused failed beside other rows, so it takes no turns with them from now on: out of memory"
    assert failed == "fused failed: out of memory"
    assert (third, alone) == (f"round 1 of 2: {full}freed", f"round 1 of 2: {compute}")
    assert "closing the gaps gives at most 2.00 times the speed" in gain
    assert others == [f"round 2 of 2: {name}" for name in (f"{full}freed", f"{full}start{together}", compute)]


@pytest.mark.slow
def test_if_the_first_row_fails_later_the_rounds_before_count(tmp_path: Path, turns: Processes) -> None:
    """In the third round the start has the last turn; it fails beside the others, and then by itself."""
    study = steps_study(tmp_path, STEPS, repeats=4)
    start = study.rows[0].overrides
    turns.fails = lambda words, number: number > 6 and words == start
    speeds = measured(study)
    assert len(turns.jobs) == 10 and turns.jobs[-1].overrides == start
    assert {name: len(row) for name, row in speeds.turns.items()} == {"start": 2, "fused": 2, "freed": 2}
    table, _, details, _ = tables(study, compare(speeds, Losses()), speeds.ended)
    assert any(note.startswith("Measuring ended in round 3, as start failed") for note in details.notes)
    assert table.texts()[1][2] == "1.50 x"
    turns.fails = lambda words, number: False
    measured(study)
    assert len(turns.jobs) == 10 + 4, "the failed turn and the turns after it"


def test_rows_change_their_order_from_round_to_round(tmp_path: Path, turns: Processes) -> None:
    """A row gains or loses some percent by its place, which must not add up over the rounds."""
    names = [f"step {i}" for i in range(9)]
    study = steps_study(tmp_path, [{"name": name, "overrides": [f"seed={name[-1]}"]} for name in names], repeats=20)
    measured(study)
    for orders in (
        [[name for name, _ in job.rows] for job in turns.sessions],
        [[job.overrides for job in turns.jobs[i : i + 10]] for i in range(0, 200, 10)],
    ):
        assert all(first == second[::-1] for first, second in zip(orders[::2], orders[1::2], strict=True))
        middles = {row: sum(order.index(row) for order in orders[::2]) / 10 for row in orders[0]}
        assert all(abs(place - 4.5) < 2 for place in middles.values())


def test_rows_stop_when_they_are_decided_and_the_others_continue(tmp_path: Path, turns: Processes) -> None:
    """The last row is noisy at first; it needs more rounds, and so does the row that it is compared with."""
    noise = iter([0.9, 0.9, 1.1, 1.1])

    def noisy(words: Words, speed: Speed) -> Speed:
        rate = next(noise, 1.0) if "seed=8" in words else 1.0
        return {name: value and value * rate for name, value in speed.items()}

    turns.change = turns.change_alone = noisy
    turns.times = {FUSED: 1000.0, "model.set_to_none=true": 1000.0}
    steps = [*STEPS, {"name": "last", "overrides": ["seed=8"]}]
    labels: list[str] = []
    speeds = measured(steps_study(tmp_path, steps, repeats=None, budget_seconds=1e6), labels.append)
    num = {name: len(row) for name, row in speeds.turns.items()}
    assert num["start"] == num["fused"] == 2 < num["freed"] == num["last"]
    assert num["last"] in (4, 8, 16, 32), "rows stop only after the rounds in which the intervals allow a look"
    assert any(label.startswith("round 3, 2 of 3 steps decided: full pipeline: freed") for label in labels)
    assert [[name for name, _ in job.rows] for job in turns.sessions[1:3]] == [list(num)[::-1], ["last", "freed"]]
    verdicts = {result.row.name: result.worth.verdicts for result in compare(speeds, Losses())}
    assert verdicts == {"start": set(), "fused": {"faster"}, "freed": {"faster"}, "last": {"no difference"}}


def test_a_measure_that_was_given_up_may_go_on_later(
    tmp_path: Path, turns: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first look only the pipeline of two rows goes on; at the second only the network alone of all rows."""
    rows = {"start", "fused", "freed"}
    looks = {2: {"compute": set(), "full": {"start", "fused"}}, 4: {"compute": rows, "full": set()}}
    nobody: dict[str, set[str]] = {"compute": set(), "full": set()}
    monkeypatch.setattr(speeds_module, "undecided_rows", lambda *_, num_rounds, **others: looks.get(num_rounds, nobody))
    speeds = measured(steps_study(tmp_path, STEPS, repeats=None, budget_seconds=1e6))
    num = {name: [len(rates_of(row, measure)) for measure in ("compute", "full")] for name, row in speeds.turns.items()}
    assert num == {"start": [6, 4], "fused": [6, 4], "freed": [6, 2]}
    assert set(compare(speeds, Losses())[2].worth) == {"compute", "full"}


def test_with_a_budget_a_row_that_fails_later_is_left_out_and_the_others_go_on(
    tmp_path: Path, turns: Processes
) -> None:
    """In the third round; only the noise of the pipeline keeps the two rows going."""
    noise = iter([0.9, 1.1] * 6)
    turns.change = lambda words, speed: speed | {"full": 500 * next(noise, 1.0)}
    turns.fails = lambda words, number: "model.set_to_none=true" not in words and FUSED in words and number > 8
    steps = [*STEPS, {"name": "last", "overrides": ["seed=8"]}]
    speeds = measured(steps_study(tmp_path, steps, repeats=None, budget_seconds=1e6))
    assert speeds.failures == {"fused": "in round 3: out of memory"}
    assert speeds.turns.keys() == {"start", "freed", "last"} and len(speeds.turns["start"]) >= 4


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


@pytest.mark.slow
def test_a_study_that_was_continued_promises_less(tmp_path: Path, turns: Processes) -> None:
    """Each end at the budget is one more chance to be wrong. The same command without further rounds is none; it keeps
    all rounds, however short its budget is."""
    rates = iter([0.98, 1.02])
    turns.change = lambda words, speed: speed | ({"full": 500 * next(rates, 1.0)} if FUSED in words else {})
    budgets = (0.0, 0.0, 1e6, 0.0)
    studies = [steps_study(tmp_path, STEPS, repeats=None, budget_seconds=budget) for budget in budgets]
    speeds = [measured(study) for study in studies]
    assert [len(each.turns["start"]) > 2 for each in speeds] == [False, False, True, True]
    assert [each.num_continued for each in speeds] == [0, 0, 1, 1]
    assert speeds[3].turns == speeds[2].turns
    last = tables(studies[-1], compare(speeds[-1], Losses()), num_continued=1)[2].notes
    assert "at once with a probability of 91%" in last[0] and "continued once" in last[1]


def test_disturbed_cycles_are_left_out_and_a_note_says_how_many(tmp_path: Path, turns: Processes) -> None:
    """Each measurement has six calm cycles; in the first one of the pipeline, another program runs in two cycles."""
    percents = iter([0.0, 40.0, 40.0])
    turns.others = lambda: next(percents, 0.0)
    study = steps_study(tmp_path, STEPS[:1], repeats=2)
    speeds = measured(study)
    assert [speed["others_percent"] for speed in speeds.turns["fused"]] == [0.0, 0.0]
    left_out = "Cycles left out because of other programs or lowered clocks: 2 of the full pipeline."
    assert left_out in tables(study, compare(speeds, Losses()))[2].notes


def test_on_a_machine_that_is_always_busy_no_cycle_is_left_out(tmp_path: Path, turns: Processes) -> None:
    turns.others = lambda: 50.0
    study = steps_study(tmp_path, STEPS[:1], repeats=2)
    alone, full, details, _ = tables(study, compare(measured(study), Losses()))
    warning = "Other programs used 50 % of the CPUs or more in most measurements, which widens the intervals."
    assert warning in alone.notes and warning in full.notes
    assert not any("left out because of" in note for note in details.notes)


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


def test_a_pipeline_whose_training_ends_too_early_fails_and_the_others_are_measured(
    tmp_path: Path, turns: Processes
) -> None:
    turns.ends_early = lambda words: FUSED in words and "model.set_to_none=true" not in words
    speeds = measured(steps_study(tmp_path, STEPS, repeats=2))
    assert speeds.failures == {
        "fused": "the run ended before it could be measured: raise --seconds, lower data.batch_size or use more images"
    }
    assert {name: len(row) for name, row in speeds.turns.items()} == {"start": 2, "freed": 2}
    assert all(FUSED not in row.overrides for row in speeds.rows if row.name == "freed")


FOUR = [*STEPS, {"name": "third", "overrides": ["seed=7"]}, {"name": "last", "overrides": ["seed=8"]}]


def test_rows_take_turns_while_their_pipelines_take_half_of_the_memory(
    tmp_path: Path, turns: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pipeline takes 24 % of /dev/shm, so two take turns at a time."""
    monkeypatch.setattr(pipelines, "_room", lambda: (1000, 1000 - 240 * turns.num_running))
    speeds = measured(steps_study(tmp_path, FOUR, repeats=1))
    assert turns.groups == [2, 2, 1] and len(turns.jobs) == 5 == len(speeds.turns)


@pytest.mark.parametrize(
    ("words", "groups"), [((), [3]), (("data.added_latency_ms=5",), [1] * 3), (("data.max_mb_per_second=9",), [1] * 3)]
)
def test_pipelines_take_turns_but_not_on_simulated_slow_storage(
    words: Words, groups: list[int], tmp_path: Path, turns: Processes
) -> None:
    """Its waits would go on while a process is stopped."""
    measured(steps_study(tmp_path, STEPS, *words, repeats=1))
    assert turns.groups == groups


def test_a_pipeline_that_fails_beside_others_is_measured_by_itself_from_then_on(
    tmp_path: Path, turns: Processes
) -> None:
    """In the first round it divides the others, which keep their order; later it comes last."""
    turns.fails_beside = lambda words, num_running: FUSED in words and "model.set_to_none=true" not in words
    speeds = measured(steps_study(tmp_path, FOUR, repeats=2))
    assert not speeds.failures and {len(row) for row in speeds.turns.values()} == {2}
    assert turns.groups == [1, 1, 3, 4, 1] and len(turns.jobs) == 6 + 5


def test_rows_whose_loaders_lack_memory_beside_others_are_measured_before_the_next_group(
    tmp_path: Path, turns: Processes
) -> None:
    """Beside two others a loader would be smaller; by itself it is not."""
    turns.lacks_memory = lambda words: turns.num_running > 2
    speeds = measured(steps_study(tmp_path, FOUR, repeats=1))
    assert len(speeds.turns) == 5 and len(turns.jobs) == 5 + 2 and turns.groups == [3, 3, 1]


def test_if_memory_limits_each_loader_no_rows_take_turns(tmp_path: Path, turns: Processes) -> None:
    turns.lacks_memory = lambda words: True
    measured(steps_study(tmp_path, FOUR, repeats=1))
    assert len(turns.jobs) == 5 and turns.groups == [1] * 5


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_row_that_fails_beside_others_is_measured_by_itself(
    tmp_path: Path, turns: Processes, by_itself: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it fails again, the rows above it already have its step, so they keep it and the table says so."""
    turns.fails_alone = lambda words, num_rows: (
        FUSED in words and "model.set_to_none=true" not in words and (by_itself or num_rows > 1)
    )
    study = steps_study(tmp_path, STEPS)
    speeds = measured(study)
    assert [[name for name, _ in job.rows] for job in turns.sessions[:2]] == [["start", "fused", "freed"], ["fused"]]
    assert all(FUSED in job.overrides for job in turns.jobs if "model.set_to_none=true" in job.overrides)
    assert speeds.failures == ({"fused": "out of memory"} if by_itself else {})
    said = "fused failed beside other rows, so it was measured by itself: out of memory\n"
    assert (said in capsys.readouterr().err) == (not by_itself)
    assert [row.overrides for row in speeds.rows] == [row.overrides for row in study.rows]
    notes = tables(study, compare(speeds, Losses()))[2].notes
    later = "freed was measured on top of fused, which failed later: the ratio includes the failed steps."
    assert (later in notes) == by_itself


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
    checked: None,
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
        if number == 6:
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
        f"\nstopped; 3 measurements are kept in {tmp_path}: run the same command again to resume\n"
    )
    turns.fails = lambda words, number: False
    run(request)
    beforehand, _, afterwards = capsys.readouterr().err.partition("measuring: ")
    assert beforehand.endswith(f"{plan}resuming: 3 measurements are kept from an earlier run\n")
    assert afterwards.startswith("round 1 of 2: full pipeline: fused"), (
        "which had failed; the turn of the start is stored"
    )
    assert len(turns.jobs) == 6 + 5, "only the first turn of the start is reused, as freed now builds on fused"


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
