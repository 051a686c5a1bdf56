"""Efficiencies calculated by hand, timed steps with an injected clock, and real processes."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import LightningModule

from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.probe.isolated import call_isolated
from imagenet_opt.study.kinds import scaling
from imagenet_opt.study.kinds.comparison import Setting
from imagenet_opt.study.kinds.scaling import Job, Stretch, scaling_table
from tests.study.studies import TINY


def test_efficiency_is_the_rate_of_each_process_over_that_of_one_alone() -> None:
    settings = {
        f"processes: {num}": Setting((str(num),), float, "processes: 1" if num > 1 else None, curve="measured", x=num)
        for num in (1, 2, 4)
    }
    rates = {"processes: 1": [100.0, 300.0, 100.0], "processes: 2": [90.0, 270.0, 90.0], "processes: 4": []}
    rounds = Rounds(rates, {"processes: 4": "killed by signal 9"})
    table = scaling_table(settings, rounds, ["8 processes: there are 4 GPUs here."], on_gpu=True)
    assert "efficiency" in table.headings
    second: Any = table.rows[1]
    assert second[4:] == (pytest.approx(0.9), "0.90-0.90", "slower", 180.0)
    assert table.finding == "processes: 2: 90% of ideal scaling (slower)."
    assert table.plots[0].series[0].x == (1, 2) and table.left_out == ("8 processes: there are 4 GPUs here.",)
    shared = scaling_table(settings, rounds, on_gpu=False).notes[-1]
    assert shared.startswith("Without GPUs")


class Clock:
    """In place of `time`. seconds: of each step; later steps take as long as the last one given."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.now, self.num_steps = seconds, 0.0, 0

    def step(self) -> None:
        self.now += self.seconds[min(self.num_steps, len(self.seconds) - 1)]
        self.num_steps += 1

    def perf_counter(self) -> float:
        return self.now


def test_slow_first_steps_and_the_trial_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps that compile; eight of 0.1 s, so that 20 fit into 2 s; then 20 timed steps of 0.2 s."""
    clock = Clock(30.0, 5.0, 5.0, *[0.1] * 8, 0.2)
    monkeypatch.setattr(scaling, "time", clock)
    strategy = SimpleNamespace(broadcast=lambda value: value)
    trainer: Any = SimpleNamespace(
        strategy=strategy, train_dataloader=None, num_training_batches=1000, world_size=2, should_stop=False
    )
    stretch, module = Stretch(2.0), LightningModule()
    while not trainer.should_stop:
        clock.step()
        stretch.on_train_batch_end(trainer, module, None, range(6), clock.num_steps - 1)
    assert clock.num_steps == 3 + 8 + 20
    assert stretch.images_per_second == pytest.approx(6 / 0.2)


@pytest.mark.slow
def test_two_processes_train_and_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job, began = Job((*TINY, "data.num_workers=0"), 2, 0.1), time.perf_counter()
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    rate = call_isolated("imagenet_opt.study.kinds.scaling.train", job, environment=environment)
    assert 0 < 16 * 4 / rate < time.perf_counter() - began, "at least 16 steps take place"
    assert [file.name for file in tmp_path.iterdir() if file.name != "cache"] == []
