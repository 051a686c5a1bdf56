from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.profilers import PassThroughProfiler

from imagenet_opt.callbacks.acceleration import Acceleration
from imagenet_opt.config.build import build_model, build_trainer
from imagenet_opt.data.batch import Batch
from imagenet_opt.probe.device_steps import random_batch
from imagenet_opt.probe.fit import fit_timer
from imagenet_opt.probe.fit.fit_timer import FitTimer, compile_seconds
from imagenet_opt.probe.resident_loader import ResidentLoader
from imagenet_opt.probe.throughput import fit_ceiling
from imagenet_opt.probe.throwaway_run import only, run_folder
from tests.config.configs import tiny


class Queue(ResidentLoader):
    """A loader of one batch. `stock` maps the number of a step to the number of ready batches after its fetch."""

    def __init__(
        self, batch: Batch, stock: Callable[[int], int], *, prefetch_factor: int = 0, reads_in_flight: int = 1
    ) -> None:
        super().__init__(replace(batch, stats=batch.stats._replace(reads_in_flight=reads_in_flight)))
        self.loader = SimpleNamespace(num_workers=1, prefetch_factor=prefetch_factor)
        self.sampler = SimpleNamespace(num_parts=1)
        self.stock, self.num_ready = stock, stock(0)

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(super().__iter__(), 1):
            self.num_ready = self.stock(number)
            yield batch


@pytest.fixture
def fit(images_root: Path, tmp_path: Path) -> Callable[..., None]:
    """Runs a fit with a timer on a Queue."""

    def fit(timer: FitTimer, stock: Callable[[int], int], **options: int) -> None:
        alone = only(tiny(tmp_path, images_root, "model.num_classes=3"), callbacks=())
        with run_folder(alone, within=tmp_path) as config:
            trainer = build_trainer(config)
            trainer.callbacks.append(timer)  # type: ignore[attr-defined]
            queue = Queue(random_batch(config, trainer), stock, **options)
            trainer.fit(build_model(config, global_batch=6), train_dataloaders=queue)

    return fit


pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")


@pytest.mark.parametrize(("num_ready", "taken", "steady"), [(1, 0, True), (1_000_000, 0, True), (1_000_000, 1, False)])
def test_a_stock_that_shrinks_during_the_measurement_is_reported(
    num_ready: int, taken: int, steady: bool, fit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of the clock is a millisecond later."""
    clock = SimpleNamespace(perf_counter=count(0.0, 1e-3).__next__, process_time=lambda: 0.0)
    monkeypatch.setattr(fit_timer, "time", clock)
    timer = FitTimer(seconds=0.01, limit_seconds=0.1, multiple=1, sees_kernels=True, sees_waits=True)
    fit(timer, lambda number: num_ready - taken * number, prefetch_factor=num_ready)
    assert timer.timing.steady == steady
    assert timer.timing.phases and timer.timing.kernel_seconds is None


def test_the_measurement_restarts_until_a_stock_of_30_batches_is_used_up(fit: Callable[..., None]) -> None:
    timer = FitTimer(seconds=0.0, limit_seconds=60, multiple=1)
    fit(timer, lambda number: max(0, 30 - number))
    assert timer.timing.has_rate and timer.timing.steady
    assert timer.timing.phases and timer._stock.num_at_begin <= 1


@pytest.mark.parametrize(("reads", "num_warm", "num_steps"), [(1, 5, 15), (16, 28, 51)])
def test_a_level_stock_is_not_used_up_unless_files_are_read_ahead(
    reads: int, num_warm: int, num_steps: int, fit: Callable[..., None]
) -> None:
    """20 batches of six images are ahead, and in files two times 16 images. Two batches of the warm-up come before. In
    20 steps, a loader that is slower by 5 % would take a batch from the stock."""
    timer = FitTimer(seconds=0.0, limit_seconds=60, multiple=1)
    fit(timer, lambda number: 20, prefetch_factor=20, reads_in_flight=reads)
    assert (len(timer.timing.launch_seconds), len(timer.timing.step_seconds)) == (num_warm, num_steps)
    assert timer.timing.steady


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [2, 4, 10, 15])
def test_a_stock_from_which_a_slower_loader_takes_a_batch_in_some_steps_is_used_up_first(
    num_steps: int, fit: Callable[..., None]
) -> None:
    timer = FitTimer(seconds=0.0, limit_seconds=60, multiple=1)
    fit(timer, lambda number: max(0, 20 - number // num_steps), prefetch_factor=20)
    assert timer.timing.steady and timer._stock.num_at_begin <= 1


def test_a_stock_that_is_level_at_first_and_then_shrinks_until_the_limit_is_reported(
    fit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of the clock is a millisecond later."""
    clock = SimpleNamespace(perf_counter=count(0.0, 1e-3).__next__, process_time=lambda: 0.0)
    monkeypatch.setattr(fit_timer, "time", clock)
    timer = FitTimer(seconds=0.01, limit_seconds=0.2, multiple=1)
    fit(timer, lambda number: 1000 - max(0, number - 6) // 3, prefetch_factor=1000)
    assert len(timer.timing.launch_seconds) == 5 and not timer.timing.steady


def test_too_few_batches_of_each_of_a_hundred_workers_give_no_rate(fit: Callable[..., None]) -> None:
    timer = FitTimer(seconds=0.0, limit_seconds=0.01, multiple=100)
    fit(timer, lambda number: 0)
    assert timer.timing.phases and not timer.timing.has_rate


def test_the_measurement_does_not_restart_at_pauses_of_the_storage(fit: Callable[..., None]) -> None:
    """The queue of four batches is empty at each fifth step. A restart would leave that pause out of the rate."""
    begun: list[float] = []

    class Counted(FitTimer):
        def _begin(self, trainer: Trainer) -> None:
            begun.append(self._began)
            super()._begin(trainer)

    timer = Counted(seconds=0.0, limit_seconds=5, multiple=1)
    timer.least_steps = 20
    fit(timer, lambda number: 0 if number and number % 5 == 0 else 4, prefetch_factor=4)
    assert len(begun) == 1 and len(timer.timing.step_seconds) >= 20


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
    monkeypatch.setattr(fit_timer, "time", SimpleNamespace(perf_counter=gpu.clock, process_time=gpu.clock))
    trainer: Any = SimpleNamespace(
        strategy=SimpleNamespace(root_device=device), profiler=PassThroughProfiler(), train_dataloader=None,
        callbacks=[], checkpoint_callbacks=[], loggers=[], num_training_batches=1_000_000, is_last_batch=False,
        should_stop=False, _logger_connector=SimpleNamespace(should_update_logs=False),
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
