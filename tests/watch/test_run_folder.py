"""Which run is the newest, and how a run ended."""

import json
import os
from pathlib import Path

import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.training.folder_lock import FILE
from imagenet_opt.watch.run_folder import LOCK, newest_run, read_snapshot
from tests.watch.runs import training, write_run


def test_the_newest_run_is_the_one_that_wrote_last_jobs_of_sweeps_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run below"):
        newest_run(tmp_path)
    runs = [write_run(tmp_path / name) for name in ("first", "sweep/1", "last")]
    for age, run in enumerate(runs):
        os.utime(run / "metrics.csv", (1e9 - age, 1e9 - age))
    assert newest_run(tmp_path) == runs[0]
    starting = tmp_path / "starting/.hydra/config.yaml"  # a run has no row in its first minute
    starting.parent.mkdir(parents=True)
    starting.write_text("")
    assert newest_run(tmp_path) == tmp_path / "starting"
    os.utime(starting, (1e9 - 9, 1e9 - 9))
    os.utime(runs[1] / "metrics.csv", (1e9 + 9, 1e9 + 9))
    assert newest_run(tmp_path) == tmp_path / "sweep/1"


def test_a_run_trains_while_its_process_holds_the_lock(tmp_path: Path) -> None:
    assert LOCK == FILE
    folder = write_run(tmp_path / "mine")
    with training(folder):
        assert read_snapshot(folder).ending is None
    assert "ended early" in (read_snapshot(folder).ending or "")
    (folder / "summary.json").write_text("{}")
    assert read_snapshot(folder).ending == "The run has ended."
    with training(folder):  # a finished run that trains further still has the summary of before
        assert read_snapshot(folder).ending is None
    (folder / "preempted.json").write_text(json.dumps({"step": 300, "reason": "SIGTERM"}))
    assert read_snapshot(folder).ending == "The run stopped at step 300 (SIGTERM). The same command resumes it."
