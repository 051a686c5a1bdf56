"""Rates and waits of loaders and steps that take known times of an injected clock."""

import time
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.profilers import SimpleProfiler
from torch.utils.data import DataLoader

from imagenet_opt.callbacks.bottleneck import Bottleneck
from imagenet_opt.callbacks.throughput import Throughput
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.data.index.open_index import open_index
from tests.callbacks.conftest import Clock, Named, Plain, SlowImages, SlowStep, images
from tests.conftest import loading, quiet_trainer

RATES = {f"throughput/{name}" for name in ("it_per_second", "images_per_second", "data_wait_fraction")}


class Reading(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step([batch.images, batch.labels], batch_idx)


class SlowValidation(Callback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_validation_batch_start(self, *_) -> None:
        self.clock.spend(0.4)


def test_waits_for_a_slow_loader_and_start_up_are_reported(project, clock: Clock) -> None:
    throughput = Throughput()
    project.fit(throughput, module=SlowStep(clock), data=SlowImages(clock))
    assert throughput.summary() == pytest.approx(
        {
            "throughput/data_wait_fraction": 0.04 / 0.05,
            "throughput/images_per_second": 4 / 0.05,
            "throughput/it_per_second": 1 / 0.05,
            "throughput/measured_batches": 10,
            "throughput/ready_batches": 0,
            "startup/first_batch_seconds": 0.04,
            "startup/first_step_seconds": 0.01,
        }
    )


def test_a_slow_step_is_not_waiting_and_validation_is_left_out(project, clock: Clock) -> None:
    throughput = Throughput()
    project.fit(throughput, SlowValidation(clock), module=SlowStep(clock))
    assert throughput.summary()["throughput/data_wait_fraction"] == 0
    assert throughput.summary()["throughput/it_per_second"] == pytest.approx(100)
    assert project.logger.values("throughput/epoch_seconds") == pytest.approx([0.1, 0.1])


class Compiling(Callback):
    """Compiles for 5 s of the clock in its fifth step, as after memory has run out."""

    compile_seconds = 3.0

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_before_optimizer_step(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 4:
            self.clock.spend(5)
            self.compile_seconds += 5


def test_a_compilation_inside_a_step_is_not_training(project, clock: Clock) -> None:
    throughput = Throughput()
    project.fit(Compiling(clock), throughput, module=SlowStep(clock))
    rates = project.logger.values("throughput/it_per_second")
    assert [*rates, throughput.summary()["throughput/it_per_second"]] == pytest.approx([100.0] * 5)
    assert project.logger.values("throughput/epoch_seconds") == pytest.approx([0.1, 0.1])


class Lagging(Plain):
    """Its device takes 10 ms for a step, which the host has queued in 1 ms, and may be 15 steps behind."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.done_at = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.clock.spend(0.001)
        self.done_at = max(self.done_at, self.clock.now) + 0.01
        self.wait(behind=0.15)
        return super().training_step(batch, batch_idx)

    def wait(self, behind: float = 0.0) -> None:
        self.clock.spend(max(0.0, self.done_at - behind - self.clock.now))


def test_rates_are_those_of_a_device_that_lags_behind_the_host(
    project, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 30 steps: ten of warm-up, a row every seven, a validation every ten."""
    module, throughput = Lagging(clock), Throughput()

    class MomentOfDevice:
        def __init__(self, device: torch.device) -> None:
            self.reached = max(clock.now, module.done_at)

        def seconds_since(self, earlier: Any) -> float:
            return self.reached - earlier.reached

    monkeypatch.setattr("imagenet_opt.callbacks.throughput.Moment", MomentOfDevice)
    monkeypatch.setattr("imagenet_opt.callbacks.throughput._wait_for_device", lambda _: module.wait())
    project.fit(throughput, SlowValidation(clock), module=module, max_epochs=3, log_every_n_steps=7)
    rates = project.logger.values("throughput/it_per_second")
    assert len(rates) == 4
    for rate in [*rates, throughput.summary()["throughput/it_per_second"]]:
        assert rate == pytest.approx(100, rel=0.05)  # after each wait the host needs 1 ms to queue a step
    assert project.logger.values("throughput/epoch_seconds") == pytest.approx([0.1] * 3, rel=0.05)


@pytest.mark.parametrize(("module", "collate_fn"), [(Plain, None), (Reading, Named.of)])
def test_rows_come_at_logging_steps_and_agree(project, module: type[Plain], collate_fn: Any) -> None:
    project.fit(Throughput(), module=module(), collate_fn=collate_fn)
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


class LongFirstStep(Callback):
    """As a compile: long enough for the loader to fill its queue."""

    def on_before_optimizer_step(self, trainer: Trainer, *_) -> None:
        until = time.monotonic() + 60
        while trainer.global_step == 0 and trainer.train_dataloader.num_ready < 12:
            assert time.monotonic() < until, "the loader does not fill its queue"
            time.sleep(0.01)


def test_batches_that_are_ready_after_the_first_step_are_not_measured(images_root, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("imagenet_opt.machine.usable_cpus", lambda: 8)
    options = loading(batch_size=1, image_size=8, num_workers=2, prefetch_factor=6)
    splits = [open_index(images_root, split, tmp_path) for split in ("train", "val")]
    throughput = Throughput()
    trainer = quiet_trainer(
        callbacks=[throughput, LongFirstStep()], max_epochs=1, limit_val_batches=0, use_distributed_sampler=False
    )
    trainer.fit(Reading(), datamodule=ImageData(*splits, options))
    summary = throughput.summary()
    assert 39 // 2 <= summary["throughput/measured_batches"] <= 39 - 13
    assert 0 <= summary["throughput/ready_batches"] <= 16


@pytest.mark.parametrize("callback", [Throughput, Bottleneck])
def test_validating_alone_is_no_mistake(project, callback: type[Callback]) -> None:
    project.fit(max_steps=1)
    project.trainer.callbacks.append(callback())
    project.trainer.validate(Plain(), DataLoader(images(8), batch_size=4), verbose=False)
