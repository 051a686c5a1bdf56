"""A window of steps is recorded, whole or as far as the fit went, and the fit does not notice."""

import csv
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from torch import nn

from imagenet_opt.callbacks.profiler import Profiler
from imagenet_opt.errors import ConfigError
from tests.callbacks.conftest import Plain, assert_same_weights


def names(file: Path) -> Counter[str]:
    with gzip.open(file, "rt") as trace:
        return Counter(event.get("name", "") for event in json.load(trace)["traceEvents"])


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as table:
        return list(csv.DictReader(table))


def left(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "profile").glob("*"))


def test_the_window_is_recorded_and_nothing_else(project, tmp_path: Path, caplog) -> None:
    module = Plain()
    module.net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(64 * 16, 3))
    with caplog.at_level("INFO"):
        project.fit(Profiler(folder=tmp_path, start_step=3, num_steps=2), module=module)
    assert project.trainer.global_step == 20
    assert left(tmp_path) == ["step_5.csv", "step_5.json.gz"]
    found = names(tmp_path / "profile/step_5.json.gz")
    assert found["aten::conv2d"] == 2 * 2
    assert sum(count for name, count in found.items() if name.startswith("Optimizer.step")) == 2
    table = rows(tmp_path / "profile/step_5.csv")
    assert {row["kind"] for row in table if "convolution" in row["operation"]} == {"contraction"}
    times = [float(row["ms_per_step"]) for row in table]
    assert times == sorted(times, reverse=True) and len(times) <= 30
    calls = {row["operation"]: float(row["calls_per_step"]) for row in table}
    assert calls["aten::convolution_backward"] == 2
    assert "profiler: 2 steps from step 5 on" in caplog.text


def test_a_window_may_go_over_an_epochs_end(project, tmp_path: Path) -> None:
    project.fit(Profiler(folder=tmp_path, start_step=8, num_steps=3))
    assert names(tmp_path / "profile/step_10.json.gz")["aten::conv2d"] == 3


@pytest.mark.parametrize(("max_steps", "recorded"), [(4, 0), (5, 1)])
def test_a_fit_that_ends_within_the_window_leaves_what_there_is(
    project, tmp_path: Path, caplog, max_steps: int, recorded: int
) -> None:
    with caplog.at_level("INFO"):
        project.fit(Profiler(folder=tmp_path, start_step=3, num_steps=5), max_steps=max_steps)
    if recorded:
        assert left(tmp_path) == ["step_5.csv", "step_5.json.gz"]
        assert names(tmp_path / "profile/step_5.json.gz")["aten::conv2d"] == recorded
        assert float(rows(tmp_path / "profile/step_5.csv")[0]["calls_per_step"]) > 0
    else:
        assert left(tmp_path) == []
        assert f"nothing was recorded: the fit had {max_steps} steps" in caplog.text


def test_an_error_within_the_window_stays_the_error_and_leaves_whole_files(project, tmp_path: Path) -> None:
    class Fail(Callback):
        def on_before_backward(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 6:
                raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        project.fit(Profiler(folder=tmp_path, start_step=3, num_steps=5), Fail())
    assert left(tmp_path) == ["step_5.csv", "step_5.json.gz"]
    assert names(tmp_path / "profile/step_5.json.gz")["aten::convolution_backward"] == 2
    project.fit(Profiler(folder=tmp_path, start_step=5, num_steps=1))  # the profiler is free again
    assert "step_7.json.gz" in left(tmp_path)


def test_training_is_as_without_it_and_a_second_fit_is_recorded_too(project, tmp_path: Path) -> None:
    profiler = Profiler(folder=tmp_path, start_step=2, num_steps=1)
    first, plain = project.fit(profiler), project.fit()
    assert_same_weights(first, plain)
    (tmp_path / "profile/step_4.csv").unlink()
    project.fit(profiler)
    assert left(tmp_path) == ["step_4.csv", "step_4.json.gz"]


def test_files_that_cannot_be_written_cause_a_warning(project, tmp_path: Path, caplog) -> None:
    (tmp_path / "profile").write_text("a file is in the way")
    project.fit(Profiler(folder=tmp_path, start_step=1, num_steps=1))
    assert project.trainer.global_step == 20
    assert "profiler: not written, training continues (FileExistsError" in caplog.text


@pytest.mark.parametrize("wrong", [{"start_step": -1}, {"num_steps": 0}, {"num_operations": 0}])
def test_wrong_numbers_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=rf"callbacks\.profiler\.{next(iter(wrong))}"):
        Profiler(folder=tmp_path, **wrong)
