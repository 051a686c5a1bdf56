"""Efficiencies calculated by hand, timed steps with an injected clock, and real processes."""

import math
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import LightningModule

from imagenet_opt.measure.stats.rounds import Rounds
from imagenet_opt.probe.isolated import call_isolated
from imagenet_opt.study.kinds import scaling
from imagenet_opt.study.kinds.scaling import Job, Scaling, StepRate, Stretch, table, train
from imagenet_opt.study.request import checked_options
from tests.study.studies import small_request


def test_the_shipped_study_is_one() -> None:
    assert checked_options(Scaling, small_request("scaling", Path())).processes == [1, 2, 4]


def test_efficiency_compares_within_rounds_and_missing_rows_have_a_reason() -> None:
    """The machine was three times as fast in one round, which does not change the efficiency.

    With two rows it is the mean of the logarithms, and its interval that of a paired t test: t for six rounds is
    2.5706.
    """
    alone, two = (100.0, 300.0, 100.0, 110.0, 90.0, 100.0), (180.0, 540.0, 170.0, 198.0, 162.0, 190.0)
    results = {
        "1": [StepRate(rate, 6 / rate) for rate in alone],
        "2": [StepRate(rate, 12 / rate) for rate in two],
        "4": [],
    }
    rounds = Rounds(results, {"4": "killed by signal 9"})
    scaling_table = table([1, 2, 4, 8], rounds, {8: "left out: 4 GPUs here"}, num_cpus=None)
    first, second, third, fourth = scaling_table.rows
    assert first[:6] == (1, 100.0, "90-300", 1.0, None, None)
    logs = [math.log(0.9)] * 4 + [math.log(0.85), math.log(0.95)]
    reach = 2.5706 * statistics.stdev(logs) / math.sqrt(6)
    low, high = (math.exp(statistics.fmean(logs) + sign * reach) for sign in (-1, 1))
    assert second[0] == 2 and second[3] == pytest.approx(math.exp(statistics.fmean(logs)))
    assert second[4:6] == (f"{low:.1%}-{high:.1%}", "slower")
    assert second[6] == pytest.approx(1000 * (12 / 180 + 12 / 190) / 2)
    assert third[1:] == (*[None] * 6, "failed: killed by signal 9") and fourth[-1] == "left out: 4 GPUs here"
    rates, shares = scaling_table.plots
    assert rates.series[0].x == (1, 2) and rates.series[1].y == (100.0, 200.0)
    assert (shares.series[0].x, shares.series[0].low) == ((2,), pytest.approx((low,), rel=1e-5))


def test_processes_that_share_the_cpus_have_a_note() -> None:
    rounds = Rounds({name: [StepRate(10.0, 0.6), StepRate(12.0, 0.5)] for name in "124"})
    scaling_table = table([1, 2, 4], rounds, {}, num_cpus=2)
    assert [row[-1] for row in scaling_table.rows] == ["", "", "more than CPUs (2)"]
    assert [row[3] for row in scaling_table.rows] == pytest.approx([1.0, 0.5, 0.25])
    assert "share" not in scaling_table.notes[0] and "share 2 CPUs" in scaling_table.notes[-1]


def test_without_one_process_nothing_is_compared() -> None:
    rounds = Rounds({"1": [], "2": [StepRate(10.0, 0.6)]}, {"1": "ended with status 1"})
    scaling_table = table([1, 2], rounds, {}, num_cpus=None)
    assert scaling_table.rows[1][1] == 10.0 and scaling_table.rows[1][3] is None and scaling_table.plots == ()


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
    assert stretch.pace == StepRate(pytest.approx(2 * 6 / 0.2), pytest.approx(0.2))  # type: ignore[arg-type]


TINY = ("model.name=test_resnet", "data.image_size=32", "data.batch_size=6", "data.num_workers=0")


@pytest.mark.slow
def test_a_turn_continues_after_the_end_of_an_epoch(
    images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(30.0, 5.0, 5.0, 0.1)

    class Clocked(Stretch):
        def on_train_batch_end(self, *details: Any) -> None:
            clock.step()
            super().on_train_batch_end(*details)

    monkeypatch.setattr(scaling, "time", clock)
    monkeypatch.setattr(scaling, "Stretch", Clocked)
    monkeypatch.setattr(scaling, "_LISTED", 1)
    monkeypatch.chdir(tmp_path)
    root = (f"data.root={images_root}", f"data.cache_dir={tmp_path}/cache", "trainer.precision=32-true")
    rate = train(Job((*root, *TINY), 1, 2.0, on_gpu=False))
    assert rate == pytest.approx({"images_per_second": 60.0, "step_seconds": 0.1})
    assert clock.num_steps == 3 + 8 + 20 > 39 // 6, "of several epochs"


@pytest.mark.slow
def test_two_processes_train_and_the_first_returns_the_rate(
    images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job((f"data.root={images_root}", *TINY, "trainer.precision=32-true"), 2, 0.1, on_gpu=False)
    monkeypatch.chdir(tmp_path)
    began = time.perf_counter()
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    rate = call_isolated("imagenet_opt.study.kinds.scaling.train", job, environment=environment, limit_seconds=120)
    assert rate["images_per_second"] == pytest.approx(2 * 6 / rate["step_seconds"]), "of both processes"
    assert 0 < 16 * rate["step_seconds"] < time.perf_counter() - began, "at least 16 steps take place"
    assert [file.name for file in tmp_path.iterdir() if file.name != "cache"] == []
