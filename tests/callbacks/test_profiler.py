"""A window of steps is recorded, whole or as far as the fit went, and the fit does not notice."""

import gzip
import json
from collections import Counter
from pathlib import Path

from imagenet_opt.callbacks.profiler import Profiler
from tests.callbacks.conftest import assert_same_weights


def names(file: Path) -> Counter[str]:
    with gzip.open(file, "rt") as trace:
        return Counter(event.get("name", "") for event in json.load(trace)["traceEvents"])


def left(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "profile").glob("*"))


def test_the_window_is_recorded_over_an_epochs_end_and_training_is_as_without_it(
    project, tmp_path: Path, caplog
) -> None:
    profiler = Profiler(folder=tmp_path, start_step=8, num_steps=3)
    with caplog.at_level("INFO"):
        first, plain = project.fit(profiler), project.fit()
    assert_same_weights(first, plain)
    assert left(tmp_path) == ["step_10.json.gz"]
    found = names(tmp_path / "profile/step_10.json.gz")
    assert found["aten::conv2d"] == 3
    assert sum(count for name, count in found.items() if name.startswith("Optimizer.step")) == 3
    assert "profiler: 3 steps from step 10 on" in caplog.text


def test_a_file_that_cannot_be_written_ends_no_training(project, tmp_path: Path, caplog) -> None:
    (tmp_path / "profile").write_text("a file is in the way")
    project.fit(Profiler(folder=tmp_path, start_step=1, num_steps=1))
    assert project.trainer.global_step == 20 and "profiler: not written" in caplog.text
