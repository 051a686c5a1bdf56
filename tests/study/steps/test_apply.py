from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import host
from imagenet_opt.study.result_cache import Kept
from imagenet_opt.study.steps import isolated_turns
from imagenet_opt.study.steps.apply import choose, keep_winners, measure_together, words_of
from imagenet_opt.study.steps.measure import measure_speeds
from imagenet_opt.study.steps.outcome import Outcome
from imagenet_opt.study.steps.parity import Parity
from imagenet_opt.study.steps.worker import TogetherJob
from tests.study.turns import Processes, announced, steps_outcome

LAST, FUSED = "callbacks.acceleration.channels_last=true", "optimizer.fused=true"
COMPILE, MODE = "callbacks.acceleration.compile=true", "callbacks.acceleration.compile_mode=max-autotune"
MIXING = "callbacks.mixing.mode='on'"
STEPS: list[dict[str, Any]] = [
    {"name": "channels_last", "overrides": [LAST]},
    {"name": "compile", "overrides": [COMPILE]},
    {"name": "max-autotune", "overrides": [COMPILE, MODE], "instead_of": "compile"},
    {"name": "fused", "overrides": [FUSED]},
]
COMMAND = "imagenet-opt study data=demo --apply"


def measured(folder: Path, processes: Processes, *given: str) -> Outcome:
    """All rows, and losses that stay."""
    outcome = steps_outcome(folder, STEPS, MIXING, *given, start="plain", repeats=2, parity_steps=10, command=COMMAND)
    for row in outcome.plan.rows:
        outcome.speeds[row.name] = [processes.speed(outcome.plan.overrides_of(row)) for _ in range(2)]
    outcome.parities = {step["name"]: Parity(0.1, 0.2) for step in STEPS}
    return outcome


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, own_conf: Path, checked: None) -> Processes:
    found = Processes(times={LAST: 1.2, COMPILE: 1.3, MODE: 1.1})
    monkeypatch.setattr(isolated_turns, "call_apart", found)
    return found


def experiments(conf: Path) -> list[Path]:
    return sorted((conf / "experiment").glob("tuned_*"))


def test_what_is_worth_it_becomes_an_experiment_that_says_what_was_measured(
    processes: Processes, own_conf: Path, tmp_path: Path
) -> None:
    kept, outcome = Kept(tmp_path), measured(tmp_path, processes)
    sheet = keep_winners(outcome, kept, announced)
    assert dict(sheet.rows) == {
        "channels_last": "yes",
        "compile": "no: max-autotune is the better of those that replace each other",
        "max-autotune": "yes",
        "fused": "no: no difference",
    }
    (file,) = experiments(own_conf)
    assert file.stem == f"tuned_{host()}_study" and f"written to {file}" in sheet.notes[-1]
    header = [line for line in file.read_text().splitlines() if line.startswith("# ")]
    facts, command, rounds, alone, _, now, _, last, mode = header[1:]
    assert facts.startswith("# 20") and host() in facts and f"torch {version('torch')}" in facts
    assert str(kept.machine["gpu"] or kept.machine["cpu"]) in facts
    assert command == f"# {COMMAND}" and rounds.endswith("against the start and how you train now, in 2 rounds")
    assert alone == "# Together, network alone, over the start: 1,000 -> 1,716 images/s, 1.72 x (1.72 to 1.72) faster"
    assert (
        now
        == "# Together, network alone, over how you train now: 1,000 -> 1,716 images/s, 1.72 x (1.72 to 1.72) faster"
    )
    assert last.startswith("# channels_last: network alone 1.20 x (1.20 to 1.20) faster, full pipeline 1.20 x")
    assert "loss same: 0.100, seeds 0.200 (channels_last against start)" in last
    assert mode.startswith("# max-autotune: network alone 1.43 x") and "against channels_last)" in mode
    assert "mixing" not in yaml.safe_load(file.read_text())["callbacks"], "that belongs to the recipe"
    config = composed((*outcome.request.overrides, f"+experiment=[demo,{file.stem}]"))
    usual = composed(outcome.request.overrides)
    assert config.callbacks.mixing.mode == "on" and config.optimizer == usual.optimizer
    assert config.data == usual.data, "what made no difference to float32 stays as the user trains"
    assert (config.callbacks.acceleration.compile, config.callbacks.acceleration.compile_mode) == (True, "max-autotune")


def test_together_they_are_measured_with_the_mixing_that_the_user_trains_with(
    processes: Processes, tmp_path: Path
) -> None:
    keep_winners(measured(tmp_path, processes), Kept(tmp_path), announced)
    together = [job.overrides for job in processes.jobs if isinstance(job, TogetherJob)]
    assert len(together) == 6 and len(set(together)) == 3
    for words in set(together):
        assert composed(words).callbacks.mixing.mode == "on"
        assert (COMPILE in words) == (MODE in words) == (LAST in words)


def test_a_user_who_has_it_all_already_gets_no_file(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    outcome = measured(tmp_path, processes, LAST, COMPILE, MODE)
    notes = keep_winners(outcome, Kept(tmp_path), announced).notes
    assert len(notes) == 5, "each measure over each of both is a line"
    assert any("network alone, over how you train now: 1,716 -> 1,716 images/s, 1.00 x" in note for note in notes)
    assert notes[-1] == "No experiment was written: no difference from how you train now, so you have it all already."
    assert not experiments(own_conf)


def test_who_trains_as_the_start_does_gets_the_file(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    processes.times = {LAST: 1.2}
    outcome = steps_outcome(tmp_path, STEPS[:1], repeats=2, parity_steps=10)
    for row in outcome.plan.rows:
        outcome.speeds[row.name] = [processes.speed(outcome.plan.overrides_of(row)) for _ in range(2)]
    outcome.parities = {"channels_last": Parity(0.1, 0.2)}
    *told, last = keep_winners(outcome, Kept(tmp_path), announced).notes
    assert len(told) == 2 and "over the start: 1,000 -> 1,200" in told[0] and last.startswith("written to ")
    assert len(experiments(own_conf)) == 1


def test_what_is_slower_than_what_the_user_has_is_not_written(
    processes: Processes, own_conf: Path, tmp_path: Path
) -> None:
    """Compiling was slow in the rows, and is fast as the user trains."""
    outcome = measured(tmp_path, processes, COMPILE)
    for name in ("compile", "max-autotune"):
        outcome.speeds[name] = [processes.speed(()) for _ in range(2)]
    *told, last = keep_winners(outcome, Kept(tmp_path), announced).notes
    assert last == "No experiment was written: together they are slower than how you train now."
    assert "over the start: 1,000 -> 1,200 images/s" in told[0] and "you train now: 1,300 -> 1,200 images/s" in told[2]
    assert not experiments(own_conf)


def test_what_does_harm_is_written_off(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    outcome = measured(tmp_path, processes, FUSED)
    (slow,) = (row for row in outcome.plan.rows if row.name == "fused")
    outcome.speeds["fused"] = [processes.speed(()) for _ in range(2)]
    assert words_of(outcome, []) == ["optimizer.fused=false"]
    assert "Off, as it did harm: optimizer.fused=false" in keep_winners(outcome, Kept(tmp_path), announced).notes
    (file,) = experiments(own_conf)
    assert yaml.safe_load(file.read_text())["optimizer"] == {"fused": False}
    outcome.speeds["fused"] = outcome.speeds["max-autotune"]
    assert words_of(outcome, []) == []
    outcome.parities["fused"] = Parity(0.3, 0.2)
    assert words_of(outcome, []) == ["optimizer.fused=false"]
    outcome.parities["fused"] = "failed: the loss is NaN"
    assert words_of(outcome, []) == ["optimizer.fused=false"]
    outcome.plan.drop(slow, first_round=True)
    outcome.failures, outcome.parities = {"fused": "out of memory"}, {}
    del outcome.speeds["fused"]
    assert words_of(outcome, []) == ["optimizer.fused=false"]


def test_what_a_harmless_step_has_too_is_not_to_blame(processes: Processes, tmp_path: Path) -> None:
    """Compiling is no difference, and max-autotune slower: the user's compile stays."""
    processes.times = {MODE: 0.8}
    outcome = measured(tmp_path, processes)
    assert words_of(outcome, []) == ["callbacks.acceleration.compile_mode=default"]


def test_where_a_row_is_left_out_its_failure_is_none_of_the_step(tmp_path: Path) -> None:
    outcome = steps_outcome(tmp_path, STEPS[:1])
    outcome.failures["channels_last"] = "out of memory"
    outcome.plan.file.start = "plain"
    assert words_of(outcome, []) == ["callbacks.acceleration.channels_last=false"]
    outcome.plan.file.order = "leave_one_out"
    assert words_of(outcome, []) == []


@pytest.mark.slow
def test_turns_of_all_together_are_none_of_later_rounds(processes: Processes, tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    outcomes = {repeats: steps_outcome(tmp_path, STEPS[:1], repeats=repeats) for repeats in (2, 3)}

    def num_new(measure: Callable[..., object], *details: Any) -> int:
        before = len(processes.jobs)
        measure(*details, kept, announced)
        return len(processes.jobs) - before

    assert num_new(measure_speeds, outcomes[2]) == 4
    assert num_new(measure_together, outcomes[2], [LAST]) == 4
    assert num_new(measure_speeds, outcomes[3]) == 2
    assert num_new(measure_together, outcomes[3], [LAST]) == 2
    assert num_new(measure_together, outcomes[2], [FUSED]) == 4, "the start has turns beside each"


def test_what_is_not_faster_together_is_not_written(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    kept, outcome = Kept(tmp_path), measured(tmp_path, processes)
    processes.times = {LAST: 1.2, COMPILE: 1 / 1.2}
    told, *_, last = keep_winners(outcome, kept, announced).notes
    assert told.startswith("Together, network alone, over the start: 1,000 ->")
    assert last == "No experiment was written: together they are not faster for sure than the start."
    assert not experiments(own_conf)


def test_a_turn_that_fails_together_leaves_no_experiment(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    kept, outcome = Kept(tmp_path), measured(tmp_path, processes)
    processes.fails = lambda words, number: MODE in words
    assert keep_winners(outcome, kept, announced).notes == (
        "No experiment was written: all that is worth keeping: out of memory.",
    )
    assert len(processes.jobs) == 3, "the start and the user's own run once, for nothing"
    assert not experiments(own_conf)


def test_of_those_that_replace_each_other_the_one_that_helps_full_runs_is_kept(
    processes: Processes, tmp_path: Path
) -> None:
    outcome = measured(tmp_path, processes)
    for speed in outcome.speeds["max-autotune"]:
        speed["full"] = 520.0 * 1.2
    assert choose(outcome)["max-autotune"] == "compile is the better of those that replace each other"
    outcome.parities["compile"] = Parity(0.3, 0.2)
    assert choose(outcome)["max-autotune"] is None, "what trains otherwise is no rival"


def test_nothing_worth_it_is_an_answer(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    processes.times = {}
    sheet = keep_winners(measured(tmp_path, processes), Kept(tmp_path), announced)
    assert sheet.notes == ("Nothing was worth it for sure; no experiment was written.",)
    assert not experiments(own_conf) and not any(isinstance(job, TogetherJob) for job in processes.jobs)
