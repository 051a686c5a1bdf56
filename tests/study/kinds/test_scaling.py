"""What more processes bring, against efficiencies calculated by hand, and once for real."""

import math
import os
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


def test_efficiency_is_of_each_round_and_what_was_not_measured_says_why() -> None:
    """The machine was three times as fast in one round: the efficiency does not see it.

    With two rows it is the mean of the logarithms, and its interval that of a paired t test: t of six is 2.5706.
    """
    alone, two = (100.0, 300.0, 100.0, 110.0, 90.0, 100.0), (180.0, 540.0, 170.0, 198.0, 162.0, 190.0)
    results = {
        "1": [StepRate(rate, 6 / rate) for rate in alone],
        "2": [StepRate(rate, 12 / rate) for rate in two],
        "4": [],
    }
    rounds = Rounds(results, {"4": "killed by signal 9"})
    found = table([1, 2, 4, 8], rounds, {8: "left out: 4 GPUs here"}, num_cpus=None)
    first, second, third, fourth = found.rows
    assert first[:6] == (1, 100.0, "90-300", 1.0, None, None)
    logs = [math.log(0.9)] * 4 + [math.log(0.85), math.log(0.95)]
    reach = 2.5706 * statistics.stdev(logs) / math.sqrt(6)
    low, high = (math.exp(statistics.fmean(logs) + sign * reach) for sign in (-1, 1))
    assert second[0] == 2 and second[3] == pytest.approx(math.exp(statistics.fmean(logs)))
    assert second[4:6] == (f"{low:.1%}-{high:.1%}", "slower")
    assert second[6] == pytest.approx(1000 * (12 / 180 + 12 / 190) / 2)
    assert third[1:] == (*[None] * 6, "failed: killed by signal 9") and fourth[-1] == "left out: 4 GPUs here"
    rates, shares = found.plots
    assert rates.series[0].x == (1, 2) and rates.series[1].y == (100.0, 200.0)
    assert (shares.series[0].x, shares.series[0].low) == ((2,), pytest.approx((low,), rel=1e-5))


def test_processes_that_share_the_cpus_are_told() -> None:
    rounds = Rounds({name: [StepRate(10.0, 0.6), StepRate(12.0, 0.5)] for name in "124"})
    found = table([1, 2, 4], rounds, {}, num_cpus=2)
    assert [row[-1] for row in found.rows] == ["", "", "more than CPUs (2)"]
    assert [row[3] for row in found.rows] == pytest.approx([1.0, 0.5, 0.25])
    assert "share" not in found.notes[0] and "share 2 CPUs" in found.notes[-1]


def test_without_one_process_nothing_is_compared() -> None:
    rounds = Rounds({"1": [], "2": [StepRate(10.0, 0.6)]}, {"1": "ended with status 1"})
    found = table([1, 2], rounds, {}, num_cpus=None)
    assert found.rows[1][1] == 10.0 and found.rows[1][3] is None and found.plots == ()


class Clock:
    """In the place of `time`. seconds: of each step; of those after them, the last one's."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.now, self.num_steps = seconds, 0.0, 0

    def step(self) -> None:
        self.now += self.seconds[min(self.num_steps, len(self.seconds) - 1)]
        self.num_steps += 1

    def perf_counter(self) -> float:
        return self.now


def test_only_the_stretch_after_the_slow_first_steps_and_the_reckoning_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps that compile, eight of 0.1 s that tell how many fit into 2 s, and so many of 0.2 s."""
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
def test_a_turn_goes_on_where_an_epoch_ends(
    images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None
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
    found = train(Job((*root, *TINY), 1, 2.0, on_gpu=False))
    assert found == pytest.approx({"images_per_second": 60.0, "step_seconds": 0.1})
    assert clock.num_steps == 3 + 8 + 20 > 39 // 6, "of several epochs"


@pytest.mark.slow
def test_two_processes_train_and_the_first_one_answers(images_root: Path, tmp_path: Path) -> None:
    job = Job((f"data.root={images_root}", *TINY, "trainer.precision=32-true"), 2, 0.1, on_gpu=False)
    before, began = os.getcwd(), time.perf_counter()
    os.chdir(tmp_path)
    try:
        own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        found = call_isolated("imagenet_opt.study.kinds.scaling.train", job, environment=own, limit_seconds=120)
    finally:
        os.chdir(before)
    assert found["images_per_second"] == pytest.approx(2 * 6 / found["step_seconds"]), "of both"
    assert 0 < 16 * found["step_seconds"] < time.perf_counter() - began, "so many steps are timed at least"
    assert [file.name for file in tmp_path.iterdir() if file.name != "cache"] == []
