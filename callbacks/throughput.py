"""Measures steps and images per second, and the share of time spent waiting for data."""

import time
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.data import extract_batch_size
from torch.utils.data import DataLoader

from imagenet_opt.data.batch import images_of
from imagenet_opt.measure.telemetry.cuda_clock import CudaClock, Moment
from imagenet_opt.run.hook_timer import FETCH, HookTimer, clock_of
from imagenet_opt.run.hooks import Compiles, MeasuredLoader, callbacks_of, compile_seconds
from imagenet_opt.run.rows import is_logging_step, log_numbers, rows_of

_WARMUP_STEPS = 10


@dataclass
class RateWindow:
    """Counts since `began`: steps, images of this process, and seconds that are not training.

    num_ready: number of batches that were ready at the start.
    """

    began: Moment
    num_steps: int = 0
    num_images: int = 0
    wait_seconds: float = 0.0
    pause_seconds: float = 0.0
    num_ready: int = 0

    def seconds(self, until: Moment) -> float:
        return max(until.seconds_since(self.began) - self.pause_seconds, 1e-9)

    def rates(self, until: Moment, world_size: int) -> dict[str, float]:
        seconds = self.seconds(until)
        return {
            "throughput/it_per_second": self.num_steps / seconds,
            "throughput/images_per_second": self.num_images * world_size / seconds,
            "throughput/data_wait_fraction": min(1.0, self.wait_seconds / seconds),
        }


class Throughput(Callback):
    """Times training from batch to batch, including waits for data. Validation and start-up are not counted, nor are
    the `compile_seconds` and `cuda_graph_seconds` of other callbacks, for a new image size or less memory.

    An `it` is one batch, which is one optimizer step unless gradients are accumulated.

    The host may be several steps ahead of the GPU. So rates are those of the GPU, between CUDA events that are read
    with the row. The host waits for the GPU before and after each validation and at the end of an epoch.

    Rates of the run start after ten steps, and after as many steps as batches were ready at the end of the first
    step: workers fill their queue while the network is compiled, which would make slow storage look fast.

    | key | unit |
    |---|---|
    | `throughput/it_per_second` | batches per second since the last logging step, with saves and starts of epochs |
    | `throughput/images_per_second` | images per second: rank 0's, times the number of processes |
    | `throughput/data_wait_fraction` | share of that time in which rank 0 was blocked in `next(loader)`, 0 to 1 |
    | `throughput/device_step_seconds` | seconds from first to last kernel of a step, by CUDA events (GPU only) |
    | `throughput/epoch_seconds` | seconds of the epoch without validation (after a resume: since the resume) |

    `data_wait_fraction` is no share of the GPU's time: a GPU may compute while the host waits, or be idle while it does
    not. `device_step_seconds` has the gaps between kernels in it, and counts a step from this callback's
    `on_train_batch_start`: the resize of the batch and the mixing are queued earlier and not counted.

    From a `MeasuredLoader` (run/hooks.py), means per batch of rank 0:

    | key | unit |
    |---|---|
    | `loader/read_seconds` | seconds in which a worker waited for the storage |
    | `loader/cpu_wait_seconds` | seconds in which it waited for a CPU; if unknown (gVisor), the next row has them |
    | `loader/decode_seconds` | the other seconds of its batch: it computed, mostly decoding |
    | `loader/copy_seconds` | seconds of the copy to the device |
    | `loader/mb_read` | MB of encoded images |
    | `loader/reads_in_flight` | limit of simultaneous requests of a worker |
    | `loader/queue_depth`, `loader/queue_seconds` | batches ready at a request, and seconds since they were ready |
    | `loader/skipped` | number of bad samples so far |
    | `loader/retries` | number of reads so far that failed with an error that may pass |
    | `loader/throttled` | requests to a URL so far that were refused as too many (429, 503); part of retries |
    | `loader/cache_hit_percent` | % of the samples that came from the local cache (`data.root` is a URL; so the next) |
    | `loader/cache_damaged` | number of samples so far that were damaged in the cache, and fetched again |
    """

    _window: RateWindow
    _epoch: RateWindow
    _steady: RateWindow
    _compiled: float
    _device_clock: CudaClock

    def __init__(self) -> None:
        self._clock: HookTimer | None = None
        self._startup: dict[str, float] = {}
        self._rates: dict[str, float] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._clock = None
        if stage == "fit":
            rows_of(trainer)  # the first row may be that of the end of an epoch
            self._clock = clock_of(trainer)
            self._waited = self._clock.seconds[FETCH]
            self._device_clock = CudaClock(trainer.strategy.root_device)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._planned = trainer.estimated_stepping_batches - trainer.global_step
        self._world_size = trainer.world_size
        self._startup, self._rates = {}, {}
        callbacks = callbacks_of(trainer)
        self._compilers = [callback for callback in callbacks if isinstance(callback, Compiles)]
        # A run that resumes in a validation reaches its end without on_train_epoch_start and without a batch.
        self._begin(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch = RateWindow(_now(trainer))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        assert self._clock is not None
        waited, self._waited = self._clock.seconds[FETCH] - self._waited, self._clock.seconds[FETCH]
        if not self._startup:
            self._startup["startup/first_batch_seconds"] = waited
            self._begin(trainer)  # start-up is not training
            waited = 0.0
        images = images_of(batch)
        num_images = extract_batch_size(batch) if images is None else len(images)
        for window in self._windows():
            window.wait_seconds += waited
            window.num_images += num_images
        self._device_clock.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._device_clock.stop()
        compiled_before, self._compiled = self._compiled, compile_seconds(self._compilers) or 0.0
        for window in self._windows():
            window.num_steps += 1
            window.pause_seconds += self._compiled - compiled_before
        if "startup/first_step_seconds" not in self._startup:
            self._startup["startup/first_step_seconds"] = time.perf_counter() - self._began
            self._warmup_left = int(min(max(_WARMUP_STEPS, 1 + _num_ready(trainer)), self._planned // 2))
        self._warmup_left -= 1
        if self._warmup_left == 0:
            self._steady = RateWindow(_now(trainer), num_ready=_num_ready(trainer))
        if is_logging_step(trainer):
            now = _now(trainer)
            log_numbers(trainer, partial(self._row, self._window, now))
            if isinstance(loader := trainer.train_dataloader, MeasuredLoader):
                log_numbers(trainer, loader.pop_metrics())
            self._window = RateWindow(now)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = _now(trainer)
        log_numbers(trainer, {"throughput/epoch_seconds": self._epoch.seconds(now)})
        if self._steady.num_steps:
            self._rates = self._steady.rates(now, self._world_size) | {
                "throughput/measured_batches": self._steady.num_steps,
                "throughput/ready_batches": min(self._steady.num_ready, self._steady.num_steps),
            }

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _wait_for_device(trainer)
        self._paused_at = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._clock is not None and not trainer.sanity_checking:
            _wait_for_device(trainer)
            for window in self._windows():
                window.pause_seconds += time.perf_counter() - self._paused_at

    def summary(self) -> dict[str, float]:
        """Rates of the run after the warm-up, the number of measured batches, how many of these were ready before the
        measurement, and the seconds of the first batch and step."""
        return self._rates | self._startup

    def _begin(self, trainer: Trainer) -> None:
        now = _now(trainer)
        self._began, self._compiled = time.perf_counter(), compile_seconds(self._compilers) or 0.0
        self._window, self._epoch, self._steady = RateWindow(now), RateWindow(now), RateWindow(now)

    def _windows(self) -> tuple[RateWindow, RateWindow, RateWindow]:
        return self._window, self._epoch, self._steady

    def _row(self, window: RateWindow, until: Moment) -> dict[str, float]:
        rates = window.rates(until, self._world_size)
        if seconds := self._device_clock.finished_seconds():
            rates["throughput/device_step_seconds"] = fmean(seconds)
        return rates


def _now(trainer: Trainer) -> Moment:
    return Moment(trainer.strategy.root_device)


def _wait_for_device(trainer: Trainer) -> None:
    """Wait until the device has finished all queued work."""
    if (device := trainer.strategy.root_device).type == "cuda":
        torch.cuda.synchronize(device)


def _num_ready(trainer: Trainer) -> int:
    """Number of ready batches; for a loader that does not report this number, the most batches that it prefetches."""
    loader: Any = trainer.train_dataloader
    if isinstance(loader, MeasuredLoader):
        return loader.num_ready
    return loader.num_workers * (loader.prefetch_factor or 0) if isinstance(loader, DataLoader) else 0
