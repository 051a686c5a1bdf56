"""Rates and waits, told apart by loaders and steps that really take time."""

import time

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.profilers import SimpleProfiler
from torch.utils.data import DataLoader, Dataset

from callbacks.throughput import Throughput
from tests.callbacks.conftest import Named, Plain, images

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")
RATES = {f"throughput/{name}" for name in ("it_per_second", "images_per_second", "data_wait_fraction")}


def spend(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class SlowImages(Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        spend(0.01)
        return torch.zeros(3, 8, 8), i % 3


class SlowStep(Callback):
    def on_before_optimizer_step(self, *_) -> None:
        spend(0.04)


class SlowValidation(Callback):
    def on_validation_batch_start(self, *_) -> None:
        spend(0.4)


def test_a_slow_loader_is_waited_for(project) -> None:
    throughput = Throughput()
    project.fit(throughput, data=SlowImages())
    assert throughput.summary()["throughput/data_wait_fraction"] > 0.6


def test_a_slow_step_is_not_waiting(project) -> None:
    throughput = Throughput()
    project.fit(throughput, SlowStep())
    assert throughput.summary()["throughput/data_wait_fraction"] < 0.3


def test_validation_is_left_out(project) -> None:
    throughput = Throughput()
    project.fit(throughput, SlowValidation())
    assert throughput.summary()["throughput/it_per_second"] > 20 / 1.6 * 1.5
    epochs = [row["throughput/epoch_seconds"] for _, row in project.logger.rows if "throughput/epoch_seconds" in row]
    assert len(epochs) == 2
    assert max(epochs) < 0.8


def test_rows_come_at_logging_steps_and_agree(project) -> None:
    project.fit(Throughput())
    rows = [(step, row) for step, row in project.logger.rows if row.keys() & RATES]
    assert [step for step, _ in rows] == [4, 9, 14, 19]
    for _, row in rows:
        assert row.keys() >= RATES
        ratio = row["throughput/images_per_second"] / row["throughput/it_per_second"]
        assert ratio == pytest.approx(4)


def test_the_profiler_of_the_user_still_works_and_is_given_back(project) -> None:
    profiler = SimpleProfiler()
    project.fit(Throughput(), profiler=profiler)
    assert project.trainer.profiler is profiler
    assert "run_training_batch" in profiler.recorded_durations
    assert len(profiler.recorded_durations["[_TrainingEpochLoop].train_dataloader_next"]) >= 20


def test_a_batch_with_names_is_counted(project) -> None:
    class Reading(Plain):
        def training_step(self, batch: Named, batch_idx: int) -> torch.Tensor:
            return super().training_step([batch.images, batch.labels], batch_idx)

    project.fit(Throughput(), module=Reading(), collate_fn=Named.of)
    row = next(row for _, row in project.logger.rows if row.keys() >= RATES)
    assert row["throughput/images_per_second"] / row["throughput/it_per_second"] == pytest.approx(4)


def test_validating_alone_is_no_mistake(project) -> None:
    project.fit(max_steps=1)
    project.trainer.callbacks.append(Throughput())
    project.trainer.validate(Plain(), DataLoader(images(8), batch_size=4), verbose=False)


def test_start_up_is_told_once(project) -> None:
    throughput = Throughput()
    project.fit(throughput)
    summary = throughput.summary()
    assert 0 < summary["startup/first_batch_seconds"] < 60
    assert 0 < summary["startup/first_step_seconds"] < 60
    assert summary.keys() == RATES | {"startup/first_batch_seconds", "startup/first_step_seconds"}
