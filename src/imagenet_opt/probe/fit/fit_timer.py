"""Times steps of the real trainer."""

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.measure.stats.rate import has_few_pauses
from imagenet_opt.measure.telemetry.gpu import GpuState, read_gpu
from imagenet_opt.probe.fit.device_laps import DeviceLaps
from imagenet_opt.probe.fit.kernel_profile import KernelProfile
from imagenet_opt.probe.fit.phases import Phases
from imagenet_opt.probe.fit.step_waits import StepWaits
from imagenet_opt.probe.fit.stock import Stock, has_many_reads, images_ahead, is_level, num_ready
from imagenet_opt.run.hook_timer import attach, detach
from imagenet_opt.run.rows import is_logging_step

_LEAST_STEPS = 8
_LEVEL_STEPS = 4
"""Steps of the warm-up in which a stock of batches must be level."""
_LAST_BEGIN = 0.75
"""Share of the time limit after which a measurement does not restart."""


@dataclass
class FitTiming:
    """Timing of a fit.

    stamps: seconds at the start and at the end of each step, on a GPU by its own clock, since the host launches steps
    ahead. num_images: per stamp, those of its step; 0 for the first. phases: seconds per step of the main process, by
    activity. device_seconds: computing time of the device per step. waits: places where the host waited for the device
    in steps without logging, with counts. num_ordinary: number of those steps. cpu_seconds: CPU time of this process
    per step. copy_seconds: per batch, time of the copy to the GPU by a loader that runs at the same time; None without
    a copy. gpu_state, conv_tf32 (whether float32 convolutions use TF32): while the device computed. kernel_seconds:
    time of kernels per step; None if they were not profiled or not recorded. launch_seconds: CPU time of this process
    in each warm-up step, in which no launch waits for the GPU. compile_seconds: of the compilation. steady: whether
    the prefetched batches were used up before the measurement, or it used almost none. has_rate: whether there were
    enough steps for a rate. num_workers, making_seconds: workers of the loader, and seconds per image of one worker.
    images_before: images that may have been made before the measurement.
    """

    stamps: list[float] = field(default_factory=list)
    num_images: list[int] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    device_seconds: float = 0.0
    waits: Counter[str] = field(default_factory=Counter)
    num_ordinary: int = 0
    cpu_seconds: float = 0.0
    copy_seconds: float | None = None
    gpu_state: GpuState | None = None
    conv_tf32: bool = False
    kernel_seconds: float | None = None
    launch_seconds: list[float] = field(default_factory=list)
    compile_seconds: float | None = None
    steady: bool = False
    has_rate: bool = True
    num_workers: float | None = None
    making_seconds: float | None = None
    images_before: float = 0.0

    @property
    def step_seconds(self) -> list[float]:
        return [end - begin for begin, end in pairwise(self.stamps)]


class FitTimer(Callback):
    """Callback that lets a fit use up prefetched batches, then measures the fit and ends it.

    The measurement takes `seconds`, and at least twice as many images as may be in preparation. Steps on prefetched
    batches do not show the loader's rate: if they shrink the stock of batches, the measurement restarts. Neither is
    needed while the stock is level (`stock.is_level`): then the loader keeps up with the steps.

    multiple: number of batches that arrive at once, one per worker. sees_kernels: whether to profile a few extra steps
    on a GPU, because CUDA events also count the gaps between kernels. sees_waits: whether to count how often the host
    waits for the GPU. This costs each call of torch 1 us, so it slows down uncompiled steps more than compiled ones.
    limit_seconds: end of the measurement if there are enough steps for a rate (`FitTiming.has_rate`); the warm-up ends
    at half of it. longest_seconds: end of the measurement in any case.
    """

    def __init__(
        self,
        *,
        seconds: float,
        limit_seconds: float,
        multiple: int,
        sees_kernels: bool = False,
        sees_waits: bool = False,
        longest_seconds: float = 0.0,
    ) -> None:
        self.sees_kernels, self.sees_waits = sees_kernels, sees_waits
        self.seconds, self.limit_seconds = seconds, limit_seconds
        self.longest_seconds = max(limit_seconds, longest_seconds)
        self.multiple = max(1, multiple)
        self.least_steps = max(_LEAST_STEPS, 3 * multiple)
        self.timing = FitTiming()
        self._began = 0.0
        self._num_warm, self._num_ready = 0, deque[int](maxlen=_LEVEL_STEPS + 1)
        self._has_restarted = self._is_used_up = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
        simulated = next((callback for callback in callbacks if hasattr(callback, "timeline")), None)
        on_gpu, clock = trainer.strategy.root_device.type == "cuda", attach(trainer)
        self._laps = DeviceLaps(clock, simulated, on_gpu=on_gpu)
        self._waits = StepWaits(clock, simulated, sees_gpu=on_gpu and self.sees_waits)
        self._phases = Phases(clock)
        self._kernels = KernelProfile() if on_gpu and self.sees_kernels else None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._waits.stop()
        detach(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_profiling()  # the fit may have had no more steps

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._waits.note()
        self.timing.waits, self.timing.num_ordinary = self._waits.places, self._waits.num_ordinary
        self._laps.start_step(waits=not self.timing.stamps)
        self._launching_since = time.process_time()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now, timing, loader = time.perf_counter(), self.timing, trainer.train_dataloader
        self._laps.stop_step()
        if timing.phases:
            self._profile(trainer)
            return
        may_restart = not self._is_used_up  # later the stock shrinks in pauses of the storage, which must count
        self._is_used_up |= bool(timing.launch_seconds) and num_ready(loader) == 0
        if not timing.stamps:
            self._warm_up(trainer, batch, batch_idx, now)
            return
        self._laps.note_lap(timing.stamps, now)
        timing.num_images.append(len(batch))
        self._stock.note(batch)
        self._waits.is_ordinary = not is_logging_step(trainer)
        may_restart &= now - self._began < _LAST_BEGIN * self.limit_seconds and not trainer.is_last_batch
        if may_restart and self._stock.is_shrinking(max(self.least_steps, self._num_steps)):
            self._has_restarted = True
            self._begin(trainer)
        elif self._is_over(trainer, batch, now):
            self._end(trainer)  # the end of an epoch is not part of a step
            self._profile(trainer)

    @property
    def _num_steps(self) -> int:
        return len(self.timing.num_images) - 1

    def _warm_up(self, trainer: Trainer, batch: Any, batch_idx: int, now: float) -> None:
        """Before the measurement, which begins once prefetched batches are used up or their stock is level."""
        if not self.timing.launch_seconds:
            self._began = now  # compiling and the first step do not count against the limit
        self.timing.launch_seconds.append(time.process_time() - self._launching_since)
        self._num_warm += len(batch)
        self._num_ready.append(num_ready(trainer.train_dataloader))
        self.timing.steady = self._num_warm > 2 * len(batch) + images_ahead(batch, trainer.train_dataloader)
        is_long = len(self._num_ready) > _LEVEL_STEPS
        level = is_long and is_level(self._num_ready, self.multiple) and not has_many_reads(batch)
        must_begin = batch_idx >= trainer.num_training_batches // 3 or now - self._began > self.limit_seconds / 2
        if self.timing.steady or level or must_begin:
            device = trainer.strategy.root_device
            if device.type == "cuda":  # while the GPU still computes
                self.timing.gpu_state, self.timing.conv_tf32 = read_gpu(device.index), convolutions_take_tf32()
            self._begin(trainer)

    def _begin(self, trainer: Trainer) -> None:
        self._busy, self._cpu = self._laps.busy_seconds(), time.process_time()  # waits for the GPU
        self._stock = Stock(trainer.train_dataloader, self.multiple, self._num_ready)
        self._num_ready.clear()  # a restart has no warm-up
        self._phases.begin()
        self.timing.stamps, self.timing.num_images = [time.perf_counter()], [0]
        self._laps.begin()

    def _is_over(self, trainer: Trainer, batch: Any, now: float) -> bool:
        """Whether the measurement is complete."""
        timing, passed = self.timing, now - self._began
        enough = now - timing.stamps[0] >= self.seconds and self._num_steps >= self.least_steps
        ahead = images_ahead(batch, trainer.train_dataloader)
        enough = enough and (sum(timing.num_images) >= 2 * ahead or self._keeps_up(batch))
        enough = enough and not has_few_pauses(timing.stamps)
        enough = enough or passed >= self.limit_seconds
        has_rate = enough and self._stock.is_enough(self._num_steps)
        return has_rate or passed >= self.longest_seconds or trainer.is_last_batch

    def _keeps_up(self, batch: Any) -> bool:
        return self._stock.stays_level and not has_many_reads(batch)

    def _end(self, trainer: Trainer) -> None:
        timing, num_steps = self.timing, self._num_steps
        is_small = self._stock.num_at_begin <= self.multiple
        timing.steady |= self._stock.lasts(num_steps) and (not self._has_restarted or is_small)
        timing.has_rate = self._stock.is_enough(num_steps)
        if (stats := self._stock.stats()) is not None:
            timing.num_workers, timing.making_seconds, timing.images_before = stats
        timing.phases = {name: seconds / num_steps for name, seconds in self._phases.seconds(trainer).items()}
        timing.cpu_seconds = (time.process_time() - self._cpu) / num_steps
        timing.device_seconds = (self._laps.busy_seconds() - self._busy) / num_steps
        self._laps.note_finished(timing.stamps)  # `busy_seconds` has waited for the GPU
        timing.compile_seconds = compile_seconds(trainer)

    def _profile(self, trainer: Trainer) -> None:
        """Called after the last measured step and after each profiled step."""
        if self._kernels is None or self._kernels.step():
            self._stop_profiling()
            trainer.should_stop = True

    def _stop_profiling(self) -> None:
        if self._kernels is not None:
            self.timing.kernel_seconds = self._kernels.stop()
            self._kernels = None


def convolutions_take_tf32() -> bool:
    """Whether float32 convolutions run in TF32 now, on a GPU that has TF32.

    torch has two switches, and raises an error for the old switch if the new switch differs between parts of cuDNN.
    Source: PyTorch's CUDA semantics, TensorFloat-32 on Ampere (and later) devices.
    """
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return str(torch.backends.cudnn.conv.fp32_precision) == "tf32"  # type: ignore[attr-defined]


def compile_seconds(trainer: Trainer) -> float | None:
    """Seconds of compilation and of capturing a CUDA graph before the first step; None without either."""
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    names = ("compile_seconds", "cuda_graph_seconds")
    values = [getattr(callback, name, None) for callback in callbacks for name in names]
    durations = [seconds for seconds in values if seconds is not None]
    return sum(durations) if durations else None
