"""Timing of steps of the real trainer on a loader of one batch, and on a device with a clock of its own."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint as LightningCheckpoint
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.profilers import PassThroughProfiler

from imagenet_opt.callbacks.acceleration import Acceleration
from imagenet_opt.config.build import build_model, build_trainer
from imagenet_opt.data.batch import Batch
from imagenet_opt.probe.device_steps import random_batch
from imagenet_opt.probe.fit import fit_timer
from imagenet_opt.probe.fit.fit_timer import FitTimer, FitTiming, compile_seconds
from imagenet_opt.probe.resident_loader import ResidentLoader
from imagenet_opt.probe.throughput import fit_ceiling
from imagenet_opt.probe.throwaway_run import only, run_folder
from imagenet_opt.run.hook_timer import phases
from tests.config.configs import tiny

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")


class Queue(ResidentLoader):
    """A loader of one worker, which has made batch `number` after `number * seconds`; from batch 10 on, `pause` later,
    as its queue was full while the network was compiled."""

    num_ready = 0

    def __init__(self, batch: Batch, seconds: float, *, reads: int, pause: float) -> None:
        super().__init__(replace(batch, stats=batch.stats._replace(reads_in_flight=reads)))
        self.seconds, self.pause = seconds, pause
        self.loader = SimpleNamespace(num_workers=1, prefetch_factor=20)
        self.sampler = SimpleNamespace(num_parts=1)

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(super().__iter__()):
            made_at = number * self.seconds + (number >= 10) * self.pause
            yield replace(batch, stats=batch.stats._replace(made_at=made_at))


@pytest.fixture
def fit(images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FitTiming]:
    """The timing of a fit on a Queue; each reading of the clock is a millisecond later."""

    def fit(
        *, seconds: float, reads: int = 1, multiple: int = 1, limit_seconds: float = 60, pause: float = 0.0
    ) -> FitTiming:
        first_step_ended = 10 * seconds + pause / 2 if pause else 0.0
        clock = SimpleNamespace(
            perf_counter=count(0.0, 1e-3).__next__, process_time=lambda: 0.0, monotonic=lambda: first_step_ended
        )
        monkeypatch.setattr(fit_timer, "time", clock)
        timer = FitTimer(
            seconds=0.0, limit_seconds=limit_seconds, multiple=multiple, sees_kernels=True, sees_waits=True
        )
        alone = only(tiny(tmp_path, images_root, "model.num_classes=3"), callbacks=())
        with run_folder(alone, within=tmp_path) as config:
            trainer = build_trainer(config)
            trainer.callbacks.append(timer)  # type: ignore[attr-defined]
            queue = Queue(random_batch(config, trainer), seconds, reads=reads, pause=pause)
            trainer.fit(build_model(config, global_batch=6), train_dataloaders=queue)
        return timer.timing

    return fit


def test_a_long_first_step_does_not_lower_the_rate(fit: Callable[..., FitTiming]) -> None:
    timing = fit(seconds=5e-4, pause=8.0)
    assert fit_ceiling(timing).images_per_second == pytest.approx(6000, rel=0.05)


@pytest.mark.parametrize(("seconds", "rate"), [(0.0, 6000), (5e-4, 6000), (0.01, 600)])
def test_batches_made_before_the_measurement_do_not_raise_the_rate(
    seconds: float, rate: float, fit: Callable[..., FitTiming]
) -> None:
    """Steps of six images take a millisecond. A slower loader made the batches earlier; its rate counts."""
    assert fit_ceiling(fit(seconds=seconds)).images_per_second == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize(("reads", "num_warm", "num_steps"), [(1, 3, 8), (16, 28, 51)])
def test_the_warm_up_uses_the_images_in_preparation_if_files_are_read_ahead(
    reads: int, num_warm: int, num_steps: int, fit: Callable[..., FitTiming]
) -> None:
    """20 batches of six images are ahead, and in files two times 16 images. Two batches of the warm-up come before."""
    timing = fit(seconds=0.0, reads=reads)
    assert (len(timing.launch_seconds), len(timing.step_seconds)) == (num_warm, num_steps)
    assert timing.phases and timing.kernel_seconds is None


def test_too_few_batches_of_each_of_a_hundred_workers_give_no_rate(fit: Callable[..., FitTiming]) -> None:
    timing = fit(seconds=0.0, multiple=100, limit_seconds=0.05)
    assert timing.phases and not timing.has_rate


class Gpu:
    """A device, and a host that launches steps ahead of it; seconds of both on one clock."""

    def __init__(self) -> None:
        self.host = self.done = 0.0

    def launch(self, seconds: float) -> None:
        self.host += 0.001
        self.done = max(self.done, self.host) + seconds

    def synchronize(self) -> None:
        self.host = max(self.host, self.done)

    def clock(self) -> float:
        return self.host


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.at = max(self.gpu.done, self.gpu.host)

    def query(self) -> bool:
        return self.gpu.host >= self.at

    def elapsed_time(self, later: "Event") -> float:
        return 1000 * (later.at - self.at)


@pytest.mark.parametrize("stalls", [False, True])
def test_the_gpus_clock_counts_if_the_host_launches_ahead(stalls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host launches twenty steps of 10 ms in 20 ms, then waits for them to read metrics; a launch takes 1 ms."""
    gpu, device = Gpu(), torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(gpu))
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    clock = SimpleNamespace(perf_counter=gpu.clock, process_time=gpu.clock, monotonic=gpu.clock)
    monkeypatch.setattr(fit_timer, "time", clock)
    trainer: Any = SimpleNamespace(
        strategy=SimpleNamespace(root_device=device), profiler=PassThroughProfiler(), train_dataloader=None,
        callbacks=[], checkpoint_callbacks=[], loggers=[], num_training_batches=1_000_000, is_last_batch=False,
        should_stop=False, log_every_n_steps=50, _logger_connector=SimpleNamespace(should_update_logs=False),
    )  # fmt: skip
    timer = FitTimer(seconds=2, limit_seconds=8, multiple=1)
    module = LightningModule()
    timer.setup(trainer, module, "fit")
    for step in count():
        timer.on_train_batch_start(trainer, module, range(8), step)
        gpu.launch(0.3 if stalls and step == 100 else 0.010)
        if step % 20 == 19:
            gpu.synchronize()
        timer.on_train_batch_end(trainer, module, None, range(8), step)
        if trainer.should_stop:
            break
    assert fit_ceiling(timer.timing).images_per_second == pytest.approx(20 * 8 / 0.201, rel=0.005)
    assert sorted(timer.timing.step_seconds)[len(timer.timing.step_seconds) // 2] == pytest.approx(0.010)
    assert timer.timing.stamps[-1] == pytest.approx(gpu.done)


def test_capturing_a_graph_counts_as_compiling() -> None:
    acceleration = Acceleration()
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[acceleration])
    assert compile_seconds(trainer) is None
    acceleration.compiler.cuda_graph_seconds = 2.0
    acceleration.compiler.compile_seconds = 30.0
    assert compile_seconds(trainer) == 32.0


class Saver(LightningCheckpoint):
    """A checkpoint callback with another name."""


KEPT = ModelCheckpoint(monitor="val.loss")


@pytest.mark.parametrize(
    ("action", "phase"),
    [
        ("[_TrainingEpochLoop].train_dataloader_next", "fetch"),
        (f"[Callback]{KEPT.state_key}.on_train_batch_end", "checkpoint"),
        ("[Callback]Saver.on_train_batch_end", "checkpoint"),
        ("[Callback]Throughput.on_save_checkpoint", "checkpoint"),
        ("[Callback]GradientCheckpointing.on_train_batch_end", "callback GradientCheckpointing"),
        ("[Callback]FitTimer.on_train_batch_end", "callback FitTimer"),
        ("[Callback]RehearsalNotes.on_train_batch_start", "callback RehearsalNotes"),
        ("[Logger]MetricsCsv.log_metrics", "logging"),
        ("run_training_batch", "step"),
    ],
)
def test_the_phase_of_an_action(action: str, phase: str) -> None:
    trainer = Trainer(accelerator="cpu", logger=False, callbacks=[Saver(), KEPT])
    assert phases(trainer)(action) == phase
