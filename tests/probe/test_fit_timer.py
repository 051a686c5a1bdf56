from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.profilers import PassThroughProfiler

from callbacks.acceleration import Acceleration
from imagenet_opt.config.build import build_model, build_trainer
from imagenet_opt.data.batch import Batch
from imagenet_opt.probe import fit_timer
from imagenet_opt.probe.device_steps import random_batch
from imagenet_opt.probe.fit_timer import FitTimer, compile_seconds
from imagenet_opt.probe.resident_loader import ResidentLoader
from imagenet_opt.probe.throughput import fit_ceiling
from imagenet_opt.probe.throwaway_run import only, run_folder
from tests.config.configs import tiny


class Queue(ResidentLoader):
    """A batch again and again, of which so many may be ready, and are; `refilled` as they are taken or not at all."""

    def __init__(self, batch: Batch, num_ready: int, *, refilled: bool) -> None:
        super().__init__(batch)
        self.loader = SimpleNamespace(num_workers=1, prefetch_factor=num_ready)
        self.sampler = SimpleNamespace(num_parts=1)
        self.num_ready, self.refilled = num_ready, refilled

    def __iter__(self) -> Iterator[Batch]:
        for batch in super().__iter__():
            self.num_ready -= not self.refilled
            yield batch


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
@pytest.mark.parametrize(
    ("num_ready", "refilled", "steady"), [(1, True, True), (1_000_000, True, True), (1_000_000, False, False)]
)
def test_a_stock_that_shrinks_while_it_is_timed_is_told(
    num_ready: int, refilled: bool, steady: bool, images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock is a millisecond later."""
    clock = SimpleNamespace(perf_counter=count(0.0, 1e-3).__next__, process_time=lambda: 0.0)
    monkeypatch.setattr(fit_timer, "time", clock)
    timer = FitTimer(seconds=0.01, limit_seconds=0.1, multiple=1, sees_kernels=True, sees_waits=True)
    asked = only(tiny(tmp_path, images_root, "model.num_classes=3"), callbacks=())
    with run_folder(asked, within=tmp_path) as config:
        trainer = build_trainer(config)
        trainer.callbacks.append(timer)  # type: ignore[attr-defined]
        queue = Queue(random_batch(config, trainer), num_ready, refilled=refilled)
        trainer.fit(build_model(config, global_batch=6), train_dataloaders=queue)
    assert timer.timing.steady == steady
    assert timer.timing.phases and timer.timing.kernel_seconds is None


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
def test_a_host_that_runs_ahead_of_the_gpu_does_not_make_it_look_slower(
    stalls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It launches twenty steps of 10 ms in 20 ms and waits for them, to read metrics; the next launch takes 1 ms."""
    gpu, device = Gpu(), torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(gpu))
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(fit_timer, "time", SimpleNamespace(perf_counter=gpu.clock, process_time=gpu.clock))
    trainer: Any = SimpleNamespace(
        strategy=SimpleNamespace(root_device=device), profiler=PassThroughProfiler(), train_dataloader=None,
        callbacks=[], checkpoint_callbacks=[], loggers=[], num_training_batches=1_000_000, is_last_batch=False,
        should_stop=False, _logger_connector=SimpleNamespace(should_update_logs=False),
    )  # fmt: skip
    timer = FitTimer(seconds=2, limit_seconds=8, multiple=1, sees_kernels=False, sees_waits=False)
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
    assert len(timer.timing.stamps) == len(timer.timing.num_images)
    assert sorted(timer.timing.step_seconds)[len(timer.timing.step_seconds) // 2] == pytest.approx(0.010)
    assert timer.timing.stamps[-1] == pytest.approx(gpu.done)


def test_capturing_a_graph_counts_as_compiling() -> None:
    acceleration = Acceleration()
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[acceleration])
    assert compile_seconds(trainer) is None
    acceleration.compiler.cuda_graph_seconds = 2.0
    assert compile_seconds(trainer) == 2.0
    acceleration.compiler.compile_seconds = 30.0
    assert compile_seconds(trainer) == 32.0


class Stock(Queue):
    """Batches of which `num_ready` were made before; then none is ready when it is asked for."""

    def __iter__(self) -> Iterator[Batch]:
        for batch in ResidentLoader.__iter__(self):
            self.num_ready = max(0, self.num_ready - 1)
            yield batch


def timed_stock(num_ready: int, timer: FitTimer, images_root: Path, folder: Path) -> Stock:
    asked = only(tiny(folder, images_root, "model.num_classes=3"), callbacks=())
    with run_folder(asked, within=folder) as config:
        trainer = build_trainer(config)
        trainer.callbacks.append(timer)  # type: ignore[attr-defined]
        stock = Stock(random_batch(config, trainer), num_ready, refilled=False)
        stock.loader.prefetch_factor = 0  # so that nothing is used up before the first step counts
        trainer.fit(build_model(config, global_batch=6), train_dataloaders=stock)
    return stock


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_steps_on_a_stock_are_no_rate_of_the_run(images_root: Path, tmp_path: Path) -> None:
    """The measurement begins again until the stock of 30 batches is used up but for one."""
    timer = FitTimer(seconds=0.0, limit_seconds=60, multiple=1, sees_kernels=False, sees_waits=False)
    timed_stock(30, timer, images_root, tmp_path)
    assert timer.timing.has_rate and timer.timing.steady
    assert timer._stock.num_at_begin <= 1


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_too_few_batches_of_each_worker_are_no_rate(images_root: Path, tmp_path: Path) -> None:
    """Of a hundred workers, which bring theirs at about the same time, in a run without a stock."""
    timer = FitTimer(seconds=0.0, limit_seconds=0.01, multiple=100, sees_kernels=False, sees_waits=False)
    timed_stock(0, timer, images_root, tmp_path)
    assert timer.timing.phases and not timer.timing.has_rate


class Pauses(Queue):
    """A queue of four that is empty for a step now and then, and full again after it."""

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(ResidentLoader.__iter__(self)):
            self.num_ready = 0 if number % 5 == 4 else 4
            yield batch


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_pauses_of_the_storage_are_part_of_the_rate(images_root: Path, tmp_path: Path) -> None:
    """The measurement does not begin again at one of them: then it would leave that one out."""
    begun: list[float] = []

    class Counted(FitTimer):
        def _begin(self, trainer: Trainer) -> None:
            begun.append(self._began)
            super()._begin(trainer)

    timer = Counted(seconds=0.0, limit_seconds=5, multiple=1, sees_kernels=False, sees_waits=False)
    timer.least_steps = 20
    asked = only(tiny(tmp_path, images_root, "model.num_classes=3"), callbacks=())
    with run_folder(asked, within=tmp_path) as config:
        trainer = build_trainer(config)
        trainer.callbacks.append(timer)  # type: ignore[attr-defined]
        queue = Pauses(random_batch(config, trainer), 4, refilled=True)
        trainer.fit(build_model(config, global_batch=6), train_dataloaders=queue)
    assert len(begun) == 1 and len(timer.timing.step_seconds) >= 20
