"""Rates and waits of loaders and steps that take known times of an injected clock."""

from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader

from imagenet_opt.callbacks.bottleneck import Bottleneck
from imagenet_opt.callbacks.throughput import Throughput
from imagenet_opt.probe.fit_timer import FitTimer
from tests.callbacks.conftest import Clock, Named, Plain, SlowImages, SlowStep, images

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


@pytest.mark.parametrize(("module", "collate_fn"), [(Plain, None), (Reading, Named.of)])
def test_rows_come_at_logging_steps_and_agree(project, module: type[Plain], collate_fn: Any) -> None:
    project.fit(Throughput(), module=module(), collate_fn=collate_fn)
    rows = [(step, row) for step, row in project.logger.rows if row.keys() & RATES]
    assert [step for step, _ in rows] == [4, 9, 14, 19]
    for _, row in rows:
        assert row.keys() >= RATES
        ratio = row["throughput/images_per_second"] / row["throughput/it_per_second"]
        assert ratio == pytest.approx(4)


class Sized(Named):
    def __len__(self) -> int:
        return len(self.images)


class Gpu(SingleDeviceStrategy):
    """A GPU that does what is queued one after the other, in seconds of the clock; torch computes on the CPU."""

    root_device = torch.device("cuda", 0)

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.idle_at = clock, 0.0

    def setup_environment(self) -> None: ...

    def model_to_device(self) -> None: ...

    def batch_to_device(self, batch: Any, *_: Any, **__: Any) -> Any:
        return batch

    def end_of_queue(self) -> float:
        return max(self.clock.now, self.idle_at)

    def queue(self, seconds: float) -> None:
        self.idle_at = self.end_of_queue() + seconds

    def synchronize(self, *_: Any) -> None:
        self.clock.now = self.end_of_queue()


class Event:
    """In place of torch.cuda.Event."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def record(self) -> None:
        self.at = self.gpu.end_of_queue()

    def query(self) -> bool:
        return self.gpu.clock.now >= self.at

    def synchronize(self) -> None:
        self.gpu.clock.now = max(self.gpu.clock.now, self.at)

    def elapsed_time(self, later: "Event") -> float:
        return 1000 * (later.at - self.at)


class Slower(Reading):
    """Each step takes 10 ms more than the one before it. A GPU takes them later, while the host goes on."""

    def __init__(self, clock: Clock, gpu: Gpu | None) -> None:
        super().__init__()
        self.spend = clock.spend if gpu is None else gpu.queue

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.spend(0.05 + 0.01 * batch_idx)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_fit_timer_of_the_doctor_times_the_same_steps_alike(
    project, clock: Clock, monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    """Both begin after the fifth step; two rows have the ten steps that the timer measures."""
    gpu = Gpu(clock) if on_gpu else None
    if gpu is not None:
        monkeypatch.setattr("torch.cuda.Event", lambda **_: Event(gpu))
        monkeypatch.setattr("torch.cuda.synchronize", gpu.synchronize)
        monkeypatch.setattr("imagenet_opt.probe.fit_timer.read_gpu", lambda index: None)
        monkeypatch.setattr("lightning.pytorch.loops.fit_loop.has_len_all_ranks", lambda *_: True)  # asks the GPU
    timer = FitTimer(seconds=0.0, limit_seconds=60.0, multiple=3)
    timer.least_steps = 10
    options = {"collate_fn": Sized.of, "strategy": gpu or "auto", "limit_val_batches": 0}
    project.fit(Throughput(), timer, module=Slower(clock, gpu), data=SlowImages(clock, num=120), **options)
    timing, rows = timer.timing, [row for step, row in project.logger.rows if step in (9, 14) and row.keys() >= RATES]
    windows = [timing.stamps[end] - timing.stamps[end - 5] for end in (5, 10)]
    assert len(timing.stamps) == 11 and windows[1] > windows[0]
    assert [row["throughput/it_per_second"] for row in rows] == pytest.approx([5 / seconds for seconds in windows])
    assert [row["throughput/images_per_second"] for row in rows] == pytest.approx([20 / seconds for seconds in windows])
    shares = [row["throughput/data_wait_fraction"] for row in rows]
    waited = sum(share * seconds for share, seconds in zip(shares, windows, strict=True))
    assert waited == pytest.approx(10 * timing.phases["fetch"])
    assert timing.device_seconds == pytest.approx(0.05 + 0.01 * 9.5)  # of steps 5 to 14


def test_the_profiler_of_the_user_sees_every_action_and_is_back_after_the_fit(project) -> None:
    """A fit that failed leaves nothing to the next one."""
    profiler, failing = SimpleProfiler(), Callback()
    failing.on_train_batch_end = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        project.fit(Throughput(), Bottleneck(), failing, profiler=profiler, max_steps=3)
    project.trainer.callbacks.remove(failing)
    loader = DataLoader(images(), batch_size=4)
    project.trainer.fit(Plain(), loader, loader)
    assert project.trainer.profiler is profiler and "log_metrics" not in vars(project.logger)
    assert len(profiler.recorded_durations["run_training_batch"]) == 3


@pytest.mark.parametrize("callback", [Throughput, Bottleneck])
def test_validating_alone_is_no_mistake(project, callback: type[Callback]) -> None:
    project.fit(max_steps=1)
    project.trainer.callbacks.append(callback())
    project.trainer.validate(Plain(), DataLoader(images(8), batch_size=4), verbose=False)
