from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import host
from imagenet_opt.display.table import Table
from imagenet_opt.study.result_cache import ResultCache
from imagenet_opt.study.steps.apply import choose, keep_winners, measure_together, words_of
from imagenet_opt.study.steps.compare import RowResult, compare
from imagenet_opt.study.steps.losses import Losses, Parity
from imagenet_opt.study.steps.plan import Study
from imagenet_opt.study.steps.speeds import measure_speeds
from imagenet_opt.study.steps.turn import Speeds
from imagenet_opt.study.steps.worker import TogetherJob
from tests.study.turns import Processes, steps_study

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


@dataclass
class Measured:
    study: Study
    speeds: Speeds
    losses: Losses

    def results(self) -> list[RowResult]:
        return compare(self.speeds, self.losses)

    def words(self) -> list[str]:
        return words_of(self.study.plan.file, self.results(), [])

    def keep(self) -> Table:
        return keep_winners(self.study, self.results(), ResultCache(self.study.request.folder))


def measured(
    folder: Path, processes: Processes, *given: str, steps: list[dict[str, Any]] = STEPS, start: Any = "plain"
) -> Measured:
    """All rows, and losses that stay."""
    study = steps_study(folder, steps, MIXING, *given, start=start, repeats=2, parity_steps=10, command=COMMAND)
    turns = {row.name: [processes.speed(row.overrides) for _ in range(2)] for row in study.rows}
    losses = Losses(parities={step["name"]: Parity(0.1, 0.2) for step in steps})
    return Measured(study, Speeds(study.rows, turns), losses)


@pytest.fixture
def processes(processes: Processes, own_conf: Path) -> Processes:
    processes.times = {LAST: 1.2, COMPILE: 1.3, MODE: 1.1}
    return processes


def experiments(conf: Path) -> list[Path]:
    return sorted((conf / "experiment").glob("tuned_*"))


def test_what_is_worth_it_becomes_an_experiment_that_says_what_was_measured(
    processes: Processes, own_conf: Path, tmp_path: Path
) -> None:
    found = measured(tmp_path, processes)
    table = found.keep()
    assert dict(table.rows) == {
        "channels_last": "yes",
        "compile": "no: max-autotune is the better of those that replace each other",
        "max-autotune": "yes",
        "fused": "no: no difference",
    }
    (file,) = experiments(own_conf)
    assert file.stem == f"tuned_{host()}_study" and f"written to {file}" in table.notes[-1]
    header = [line for line in file.read_text().splitlines() if line.startswith("# ")]
    cache = ResultCache(tmp_path)
    facts, command, rounds, alone, _, now, _, last, mode = header[1:]
    assert facts.startswith("# 20") and host() in facts and f"torch {version('torch')}" in facts
    assert str(cache.machine["gpu"] or cache.machine["cpu"]) in facts
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
    config = composed((*found.study.request.overrides, f"+experiment=[demo,{file.stem}]"))
    usual = composed(found.study.request.overrides)
    assert config.callbacks.mixing.mode == "on" and config.optimizer == usual.optimizer
    assert config.data == usual.data, "what made no difference to float32 stays as the user trains"
    assert (config.callbacks.acceleration.compile, config.callbacks.acceleration.compile_mode) == (True, "max-autotune")


def test_together_they_are_measured_with_the_mixing_that_the_user_trains_with(
    processes: Processes, tmp_path: Path
) -> None:
    measured(tmp_path, processes).keep()
    together = [job.overrides for job in processes.jobs if isinstance(job, TogetherJob)]
    assert len(together) == 6 and len(set(together)) == 3
    for words in set(together):
        assert composed(words).callbacks.mixing.mode == "on"
        assert (COMPILE in words) == (MODE in words) == (LAST in words)


def test_a_user_who_has_it_all_already_gets_no_file(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    found = measured(tmp_path, processes, LAST, COMPILE, MODE)
    notes = found.keep().notes
    assert len(notes) == 5, "each measure over each of both is a line"
    assert any("network alone, over how you train now: 1,716 -> 1,716 images/s, 1.00 x" in note for note in notes)
    assert notes[-1] == "No experiment was written: no difference from how you train now, so you have it all already."
    assert not experiments(own_conf)


def test_who_trains_as_the_start_does_gets_the_file(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    processes.times = {LAST: 1.2}
    found = measured(tmp_path, processes, steps=STEPS[:1], start=())
    *told, last = found.keep().notes
    assert len(told) == 2 and "over the start: 1,000 -> 1,200" in told[0] and last.startswith("written to ")
    assert len(experiments(own_conf)) == 1


def test_what_is_slower_than_what_the_user_has_is_not_written(
    processes: Processes, own_conf: Path, tmp_path: Path
) -> None:
    """Compiling was slow in the rows, and is fast as the user trains."""
    found = measured(tmp_path, processes, COMPILE)
    for name in ("compile", "max-autotune"):
        found.speeds.turns[name] = [processes.speed(()) for _ in range(2)]
    *told, last = found.keep().notes
    assert last == "No experiment was written: together they are slower than how you train now."
    assert "over the start: 1,000 -> 1,200 images/s" in told[0] and "you train now: 1,300 -> 1,200 images/s" in told[2]
    assert not experiments(own_conf)


def test_what_does_harm_is_written_off(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    found = measured(tmp_path, processes, FUSED)
    found.speeds.turns["fused"] = [processes.speed(()) for _ in range(2)]
    assert found.words() == ["optimizer.fused=false"]
    assert "Off, as it did harm: optimizer.fused=false" in found.keep().notes
    (file,) = experiments(own_conf)
    assert yaml.safe_load(file.read_text())["optimizer"] == {"fused": False}
    found.speeds.turns["fused"] = found.speeds.turns["max-autotune"]
    assert found.words() == []
    found.losses.parities["fused"] = Parity(0.3, 0.2)
    assert found.words() == ["optimizer.fused=false"]
    found.losses.parities["fused"] = "failed: the loss is NaN"
    assert found.words() == ["optimizer.fused=false"]
    found.speeds.failures, found.losses.parities = {"fused": "out of memory"}, {}
    del found.speeds.turns["fused"]
    assert found.words() == ["optimizer.fused=false"]


def test_what_is_undecided_is_neither_kept_nor_turned_off(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    found = measured(tmp_path, processes)
    for turn, noise in zip(found.speeds.turns["fused"], (0.9, 1.15), strict=True):
        turn |= {"compute": 1000.0 * noise, "full": 500.0 * noise}
    assert dict(found.keep().rows)["fused"] == "undecided"
    assert not any("fused" in word for word in found.words())
    assert not experiments(own_conf)


def test_what_is_undecided_beside_how_the_user_trains_is_not_written(processes: Processes, tmp_path: Path) -> None:
    found = measured(tmp_path, processes, COMPILE)
    noise = iter((1.0, 1.0, 1.0, 1.0, 1.06, 1.0))
    usual = processes.speed
    processes.speed = lambda words: {  # type: ignore[method-assign]
        key: value * times if key in ("compute", "full") and value else value
        for times in [next(noise)]
        for key, value in usual(words).items()
    }
    processes.times = {COMPILE: 1.5, LAST: 1.2, MODE: 0.85}
    last = found.keep().notes[-1]
    assert last == "No experiment was written: whether they are faster than how you train now is undecided."


def test_what_a_harmless_step_has_too_is_not_to_blame(processes: Processes, tmp_path: Path) -> None:
    """Compiling is no difference, and max-autotune slower: the user's compile stays."""
    processes.times = {MODE: 0.8}
    found = measured(tmp_path, processes)
    assert found.words() == ["callbacks.acceleration.compile_mode=default"]


def test_where_a_row_is_left_out_its_failure_is_none_of_the_step(tmp_path: Path) -> None:
    found = measured(tmp_path, Processes(), steps=STEPS[:1])
    found.speeds.turns, found.losses = {}, Losses()
    found.speeds.failures["channels_last"] = "out of memory"
    assert found.words() == ["callbacks.acceleration.channels_last=false"]
    found.study.plan.file.order = "leave_one_out"
    assert found.words() == []


@pytest.mark.slow
def test_turns_of_all_together_are_none_of_later_rounds(processes: Processes, tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    studies = {repeats: steps_study(tmp_path, STEPS[:1], repeats=repeats) for repeats in (2, 3)}

    def num_new(repeats: int, words: list[str] | None = None) -> int:
        before = len(processes.jobs)
        measure_together(studies[repeats], words, cache) if words else measure_speeds(studies[repeats], cache)
        return len(processes.jobs) - before

    assert [num_new(2), num_new(2, [LAST]), num_new(3), num_new(3, [LAST])] == [4, 4, 2, 2]
    assert num_new(2, [FUSED]) == 4, "the start has turns beside each"


def test_what_is_not_faster_together_is_not_written(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    found = measured(tmp_path, processes)
    processes.times = {LAST: 1.2, COMPILE: 1 / 1.2}
    told, *_, last = found.keep().notes
    assert told.startswith("Together, network alone, over the start: 1,000 ->")
    assert last == "No experiment was written: together they are not faster for sure than the start."
    assert not experiments(own_conf)


def test_a_turn_that_fails_together_leaves_no_experiment(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    found = measured(tmp_path, processes)
    processes.fails = lambda words, number: MODE in words
    assert found.keep().notes == ("No experiment was written: all that is worth keeping: out of memory.",)
    assert len(processes.jobs) == 3, "the start and the user's own run once, for nothing"
    assert not experiments(own_conf)


def test_of_those_that_replace_each_other_the_one_that_helps_full_runs_is_kept(
    processes: Processes, tmp_path: Path
) -> None:
    found = measured(tmp_path, processes)
    for speed in found.speeds.turns["max-autotune"]:
        speed["full"] = 520.0 * 1.2
    assert choose(found.results())["max-autotune"] == "compile is the better of those that replace each other"
    found.losses.parities["compile"] = Parity(0.3, 0.2)
    assert choose(found.results())["max-autotune"] is None, "what trains otherwise is no rival"


def test_nothing_worth_it_is_an_answer(processes: Processes, own_conf: Path, tmp_path: Path) -> None:
    processes.times = {}
    table = measured(tmp_path, processes).keep()
    assert table.notes == ("Nothing was worth it for sure; no experiment was written.",)
    assert not experiments(own_conf) and not any(isinstance(job, TogetherJob) for job in processes.jobs)
