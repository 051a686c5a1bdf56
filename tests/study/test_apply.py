"""Steps that are kept, and the experiment that they become."""

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import host
from imagenet_opt.display.table import Table
from imagenet_opt.study.apply import NOW, START, choose, keep_winners
from imagenet_opt.study.losses import Parities, Parity
from imagenet_opt.study.plan import Study
from imagenet_opt.study.turn import RowResult, results_of
from tests.study.conftest import Processes
from tests.study.studies import cache_of, steps_study

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
ALL = (LAST, COMPILE, MODE)
COMMAND = "imagenet-opt study data=demo --apply"


SAME: Parities = {step["name"]: Parity(0.1, 0.2) for step in STEPS}


def measured(folder: Path, processes: Processes, *words: str) -> tuple[Study, list[RowResult]]:
    """A study whose rows were measured in two rounds. words: of the command line."""
    more: Any = {"repeats": 2, "parity_steps": 10, "command": COMMAND}
    study = steps_study(folder, STEPS, MIXING, *words, start="plain", **more)
    turns = {row.name: [processes.turn(row.overrides)] * 2 for row in study.rows}
    return study, results_of(study.rows, Rounds(turns), is_ladder=True)


def kept(study: Study, results: list[RowResult]) -> Table:
    return keep_winners(study, results, SAME, cache_of(study))


@pytest.fixture
def processes(processes: Processes, own_conf: Path) -> Processes:
    processes.times = TIMES
    return processes


def experiments(folder: Path) -> list[Path]:
    return sorted((folder / "conf/experiment").glob("tuned_*"))


@pytest.mark.slow
def test_useful_steps_become_an_experiment_whose_header_has_the_measurements(
    processes: Processes, tmp_path: Path
) -> None:
    study, results = measured(tmp_path, processes)
    table = kept(study, results)
    assert dict(table.rows) == {
        "channels_last": "yes",
        "compile": "no: max-autotune is kept instead",
        "max-autotune": "yes",
        "fused": "no: no difference",
    }
    (file,) = experiments(tmp_path)
    assert file.stem == f"tuned_{host()}_study" and f"written to {file}" in table.notes[-1]
    assert f"torch {version('torch')}" in file.read_text() and f"# {COMMAND}\n" in file.read_text()
    assert file.read_text().count("1.72 x (1.72 to 1.72) faster") == 4, "together beside the start and the user"
    assert "mixing" not in yaml.safe_load(file.read_text())["callbacks"], "mixing belongs to the recipe"
    config = composed((*study.request.overrides, f"+experiment=[demo,{file.stem}]"))
    usual = composed(study.request.overrides)
    assert config.callbacks.mixing.mode == "on" and config.optimizer == usual.optimizer
    assert config.data == usual.data, "steps without a difference keep the user's value, not the start's"
    assert (config.callbacks.acceleration.compile, config.callbacks.acceleration.compile_mode) == (True, "max-autotune")
    together = {job.overrides for job in processes.jobs}
    assert len(processes.jobs) == 6 and len(together) == 3
    assert all([word for word in words if "mixing" in word] == [MIXING] for words in together), "the user's"


def test_without_a_gain_over_start_and_user_no_experiment_is_written(
    processes: Processes, tmp_path: Path, own_conf: Path
) -> None:
    assert NOW in kept(*measured(tmp_path, processes, *ALL)).notes[-1]
    study, results = measured(own_conf, processes)
    processes.times = {COMPILE: 0.8}
    assert START in kept(study, results).notes[-1]
    assert not experiments(tmp_path)


def test_only_a_step_that_is_faster_with_the_same_loss_is_kept(processes: Processes, tmp_path: Path) -> None:
    _, results = measured(tmp_path, processes)
    results[-1] = replace(results[-1], failure="in round 2: out of memory")
    others = {"max-autotune": Parity(0.3, 0.2), "channels_last": "failed: the loss is NaN"}
    reasons = choose(results, SAME | others)
    assert reasons["compile"] is None and "another loss" in str(reasons["max-autotune"])
    assert reasons["channels_last"] == "its loss was not compared (failed: the loss is NaN)"
    assert reasons["fused"] == "failed"
    assert choose(results, {})["compile"] == "its loss was not compared (--parity 0)"
