"""Steps that are kept, and the experiment that they become."""

from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagenet_opt.compare.turn import Turn
from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import host
from imagenet_opt.display.table import Table
from imagenet_opt.study.apply import NOW, START, choose, keep_winners, words_of
from imagenet_opt.study.compare import RowResult, compare
from imagenet_opt.study.losses import Losses, Parity
from imagenet_opt.study.plan import Study
from tests.study.turns import Processes, Words, cache_of, steps_study

LAST, FUSED = "callbacks.acceleration.channels_last=true", "optimizer.fused=true"
COMPILE, MODE = "callbacks.acceleration.compile=true", "callbacks.acceleration.compile_mode=max-autotune"
MIXING = "callbacks.mixing.mode='on'"
STEPS: list[dict[str, Any]] = [
    {"name": "channels_last", "overrides": [LAST]},
    {"name": "compile", "overrides": [COMPILE]},
    {"name": "max-autotune", "overrides": [COMPILE, MODE], "instead_of": "compile"},
    {"name": "fused", "overrides": [FUSED]},
]
TIMES = {LAST: 1.2, COMPILE: 1.3, MODE: 1.1}
Times = dict[str, float]
ALL = (LAST, COMPILE, MODE)
COMMAND = "imagenet-opt study data=demo --apply"


@dataclass
class Measured:
    study: Study
    turns: dict[str, list[Turn]]
    losses: Losses
    failures: dict[str, str] = field(default_factory=dict)

    def results(self) -> list[RowResult]:
        return compare(self.study.rows, self.turns, self.failures, self.losses)

    def words(self) -> list[str]:
        return words_of(self.study.plan.file, self.results(), [])

    def keep(self) -> Table:
        return keep_winners(self.study, self.results(), cache_of(self.study))

    def set(self, name: str, **facts: list[float]) -> None:
        """Change facts of the two turns of a row."""
        self.turns[name] = [
            replace(turn, **{key: values[number] for key, values in facts.items()})
            for number, turn in enumerate(self.turns[name])
        ]


def measured(
    folder: Path, processes: Processes, *words: str, steps: list[dict[str, Any]] = STEPS, start: Any = "plain"
) -> Measured:
    """A study with two turns of each row, and losses that do not differ."""
    study = steps_study(folder, steps, MIXING, *words, start=start, repeats=2, parity_steps=10, command=COMMAND)
    turns = {row.name: [processes.turn(row.overrides) for _ in range(2)] for row in study.rows}
    losses = Losses(parities={step["name"]: Parity(0.1, 0.2) for step in steps})
    return Measured(study, turns, losses)


@pytest.fixture
def processes(processes: Processes, own_conf: Path) -> Processes:
    processes.times = TIMES
    return processes


def experiments(folder: Path) -> list[Path]:
    return sorted((folder / "conf/experiment").glob("tuned_*"))


def test_useful_steps_become_an_experiment_whose_header_has_the_measurements(
    processes: Processes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = measured(tmp_path, processes)
    study.set("start", seconds=[50.0, 50.0])
    table = study.keep()
    said = "the kept steps together are compared with the start and with how you train now: 2 rounds, about 5 min more"
    assert said in capsys.readouterr().err
    assert dict(table.rows) == {
        "channels_last": "yes",
        "compile": "no: max-autotune is kept instead: this step is not faster for certain",
        "max-autotune": "yes",
        "fused": "no: no difference",
    }
    (file,) = experiments(tmp_path)
    assert file.stem == f"tuned_{host()}_study" and f"written to {file}" in table.notes[-1]
    header = [line for line in file.read_text().splitlines() if line.startswith("# ")]
    machine = cache_of(study.study).machine
    facts, command, rounds, alone, _, now, _, last, mode = header[1:]
    assert facts.startswith("# 20") and host() in facts and f"torch {version('torch')}" in facts
    assert str(machine["gpu"] or machine["cpu"]) in facts
    assert command == f"# {COMMAND}" and rounds.endswith("against the start and how you train now, in 2 rounds")
    gain = "1,000 -> 1,716 images/s, 1.72 x (1.72 to 1.72) faster"
    assert alone == f"# Together, network alone, over the start: {gain}"
    assert now == f"# Together, network alone, over how you train now: {gain}"
    assert last.startswith("# channels_last: network alone 1.20 x (1.20 to 1.20) faster, full pipeline 1.20 x")
    assert "loss same: 0.100, seeds 0.200 (channels_last against start)" in last
    assert mode.startswith("# max-autotune: network alone 1.43 x") and "against channels_last)" in mode
    assert "mixing" not in yaml.safe_load(file.read_text())["callbacks"], "mixing belongs to the recipe"
    config = composed((*study.study.request.overrides, f"+experiment=[demo,{file.stem}]"))
    usual = composed(study.study.request.overrides)
    assert config.callbacks.mixing.mode == "on" and config.optimizer == usual.optimizer
    assert config.data == usual.data, "steps without a difference keep the user's value, not the start's"
    assert (config.callbacks.acceleration.compile, config.callbacks.acceleration.compile_mode) == (True, "max-autotune")


def test_all_steps_together_are_measured_with_the_users_mixing(processes: Processes, tmp_path: Path) -> None:
    measured(tmp_path, processes).keep()
    together = [job.overrides for job in processes.jobs]
    assert len(together) == 6 and len(set(together)) == 3
    for words in set(together):
        assert composed(words).callbacks.mixing.mode == "on"
        assert (COMPILE in words) == (MODE in words) == (LAST in words)


@pytest.mark.parametrize(
    ("words", "alone", "together", "rates", "reason", "base"),
    [
        (
            ALL,
            TIMES,
            TIMES,
            "1,716 -> 1,716",
            "no difference from {}: your configuration already has all useful steps",
            NOW,
        ),
        ((COMPILE,), {LAST: 1.2, COMPILE: 0.8}, TIMES, "1,300 -> 1,200", "together the steps are slower than {}", NOW),
        ((), TIMES, {COMPILE: 0.8}, "1,000 -> 800", "together the steps are not faster for sure than {}", START),
    ],
)
def test_without_a_gain_over_start_and_user_no_experiment_is_written(
    words: Words,
    alone: Times,
    together: Times,
    rates: str,
    reason: str,
    base: str,
    processes: Processes,
    tmp_path: Path,
) -> None:
    """alone, together: speeds in the turns of the rows, and in those of all useful steps together."""
    processes.times = alone
    study = measured(tmp_path, processes, *words)
    processes.times = together
    *lines, last = study.keep().notes
    assert len(lines) == 4, "each measure over the start and over the user's configuration"
    assert sum(f"Together, network alone, over {base}: {rates} images/s" in text for text in lines) == 1
    assert last == f"No experiment was written: {reason.format(base)}."
    assert not experiments(tmp_path)


def test_a_user_who_trains_like_the_start_gets_an_experiment(processes: Processes, tmp_path: Path) -> None:
    processes.times = {LAST: 1.2}
    *lines, last = measured(tmp_path, processes, steps=STEPS[:1], start=()).keep().notes
    assert len(lines) == 2 and "over the start: 1,000 -> 1,200" in lines[0] and last.startswith("written to ")
    assert len(experiments(tmp_path)) == 1


def test_harmful_settings_are_switched_off(processes: Processes, tmp_path: Path) -> None:
    study = measured(tmp_path, processes, FUSED)
    study.turns["fused"] = [processes.turn(()) for _ in range(2)]
    assert study.words() == ["optimizer.fused=false"]
    assert "Switched off as harmful: optimizer.fused=false" in study.keep().notes
    (file,) = experiments(tmp_path)
    assert yaml.safe_load(file.read_text())["optimizer"] == {"fused": False}
    study.turns["fused"] = study.turns["max-autotune"]
    assert study.words() == []
    for parity in (Parity(0.3, 0.2), "failed: the loss is NaN"):
        study.losses.parities["fused"] = parity
        assert study.words() == ["optimizer.fused=false"]
    study.failures, study.losses.parities = {"fused": "out of memory"}, {}
    del study.turns["fused"]
    assert study.words() == ["optimizer.fused=false"]


def test_an_undecided_step_is_neither_kept_nor_switched_off(processes: Processes, tmp_path: Path) -> None:
    study = measured(tmp_path, processes)
    study.set("fused", compute=[900.0, 1150.0], full=[450.0, 575.0])
    assert dict(study.keep().rows)["fused"] == "undecided"
    assert not any("fused" in word for word in study.words())
    (experiment,) = experiments(tmp_path)
    assert "fused" not in yaml.safe_load(experiment.read_text()).get("optimizer", {})


def test_an_undecided_gain_over_the_user_writes_no_experiment(processes: Processes, tmp_path: Path) -> None:
    study = measured(tmp_path, processes, COMPILE)

    noise = iter((1.0, 1.0, 1.0, 1.0, 0.94, 1.0))  # in the second round the user's own run is slower

    def noisy(words: Words, turn: Turn) -> Turn:
        times = next(noise)
        return replace(turn, compute=turn.compute * times, full=turn.full * times)

    processes.change = noisy
    processes.times = {COMPILE: 1.5, LAST: 1.2, MODE: 0.85}
    reason = "whether the steps are faster than how you train now is undecided"
    assert study.keep().notes[-1] == f"No experiment was written: {reason}."


def test_a_setting_that_a_harmless_step_has_too_stays(processes: Processes, tmp_path: Path) -> None:
    """Compiling makes no difference, and max-autotune is slower: the user's compile stays."""
    processes.times = {MODE: 0.8}
    assert measured(tmp_path, processes).words() == ["callbacks.acceleration.compile_mode=default"]


def test_a_failed_row_of_a_leave_one_out_study_does_not_blame_its_step(tmp_path: Path) -> None:
    study = measured(tmp_path, Processes(), steps=STEPS[:1])
    study.turns, study.losses = {}, Losses()
    study.failures["channels_last"] = "out of memory"
    assert study.words() == ["callbacks.acceleration.channels_last=false"]
    study.study.plan.file.order = "leave_one_out"
    assert study.words() == []


def test_a_turn_that_fails_together_leaves_no_experiment(processes: Processes, tmp_path: Path) -> None:
    study = measured(tmp_path, processes)
    processes.fails = lambda words, number: MODE in words
    assert study.keep().notes == ("No experiment was written: all useful steps: out of memory.",)
    assert len(processes.jobs) == 3
    assert not experiments(tmp_path)


def test_of_steps_that_replace_each_other_the_first_is_kept_unless_a_later_one_is_faster_for_certain(
    processes: Processes, tmp_path: Path
) -> None:
    """The later one is faster at first, then slower in the pipeline, then faster by less than its rounds scatter."""
    study = measured(tmp_path, processes)
    assert choose(study.results())["max-autotune"] is None
    reason = "compile is kept instead: this step is not faster for certain"
    study.set("max-autotune", full=[624.0, 624.0])
    assert choose(study.results())["max-autotune"] == reason
    first, other = study.turns["compile"]
    study.set("max-autotune", compute=[1.0001 * first.compute, other.compute], full=[1.0001 * first.full, other.full])
    assert choose(study.results())["max-autotune"] == reason
    study.losses.parities["compile"] = Parity(0.3, 0.2)
    assert choose(study.results())["max-autotune"] is None, "a step with another loss is no rival"


def test_without_a_useful_step_nothing_is_measured_together(processes: Processes, tmp_path: Path) -> None:
    processes.times = {}
    table = measured(tmp_path, processes).keep()
    assert table.notes == ("No step was certainly useful; no experiment was written.",)
    assert not experiments(tmp_path) and not processes.jobs
