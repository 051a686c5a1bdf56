"""Efficiencies calculated by hand, timed steps with an injected clock, and real processes."""

from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.study.comparison import ComparedSetting
from imagenet_opt.study.scaling import ScalingJob, scaling_table, train
from tests.processes import on_ranks
from tests.study.studies import TINY


def test_efficiency_is_the_rate_of_each_process_over_that_of_one_alone() -> None:
    turns = {"processes: 1": [100.0, 300.0, 100.0], "processes: 2": [90.0, 270.0, 90.0], "processes: 4": []}
    settings: Any = {
        name: ComparedSetting((name[-1],), float, None if name == "processes: 1" else "processes: 1") for name in turns
    }
    rounds: Rounds[float] = Rounds(turns, {"processes: 4": "killed by signal 9"})
    second: Any = scaling_table(settings, rounds, on_gpu=True).rows[1]
    assert second[4:] == (pytest.approx(0.9), "0.90-0.90", "slower")


@pytest.mark.slow
def test_two_processes_train_and_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    few = ("data.num_train=100", "data.num_val=20", "data.num_workers=0", f"data.cache_dir={tmp_path}/cache")
    job = ScalingJob((*TINY, *few, "trainer.accelerator=cpu"), 2, 0.1)
    assert min(on_ranks(lambda rank: train(job))) > 0
    assert [file.name for file in tmp_path.iterdir() if file.name != "cache"] == []
