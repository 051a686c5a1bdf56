"""Training for a stretch of time, watched in the real trainer."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.data.batch import Batch
from imagenet_opt.measure.stats.rate import LEAST_ROUNDS, has_few_pauses
from imagenet_opt.measure.telemetry.cuda_clock import CudaClock
from imagenet_opt.measure.telemetry.dtypes import convolutions_take_tf32
from imagenet_opt.measure.telemetry.gpu import GpuState, read_gpu
from imagenet_opt.measure.telemetry.host_syncs import HostWaits
from imagenet_opt.measure.telemetry.torch_profile import kernel_seconds
from imagenet_opt.run.hook_timer import CALLBACK, FETCH, LOGGER, STEP, ActionClock, saves, unwatch, watch
from imagenet_opt.run.logging_step import is_logging_step

_LEAST_STEPS = 8
_PROFILED_STEPS = 5
_LAST_BEGIN = 0.75
"""Share of the time after which no measurement begins again."""
_MOST_TAKEN = 0.05
"""Of the timed batches, that may have been made before: the rate is so much too high at most. Our choice."""


@dataclass
class Watched:
    """stamps: seconds at the end of each step, and before the first; num_images: of each, 0 for the first stamp. On a
    GPU by its own clock: the host launches steps ahead of it, and waits for it now and then.

    phases: seconds of a step that the main process spent, by what it did. device_seconds: of a step, that the device
    computed. waits: where the host waited for the device in ordinary steps, and how often in each of these.
    cpu_seconds: of a step, of this process.
    copy_seconds: of a batch of a loader beside, to the GPU; None where nothing is copied. gpu_state, conv_tf32 (whether
    float32 convolutions take TF32): while it computed.
    kernel_seconds: of a step, that kernels ran; None where it was not asked for, and where the profiler saw none.
    launch_seconds: of this process's CPUs in each step of the warm-up, in which no launch waits for the GPU.
    compile_seconds: see `compile_seconds`. steady: whether what was made ahead was used up before the first stamp, or
    is still there: else the loader may be slower than these steps.
    is_told: whether these steps are enough for a rate: each worker made batches for some of them, or the stock that was
    made ahead has lasted. num_workers, making_seconds: workers of the loader, and seconds of one of them for an image;
    None where there is no such loader. images_before: that may be counted though they were made before.
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
    is_told: bool = True
    num_workers: float | None = None
    making_seconds: float | None = None
    images_before: float = 0.0

    @property
    def step_seconds(self) -> list[float]:
        return [end - begin for begin, end in pairwise(self.stamps)]


class Watch(Callback):
    """Lets a fit use up what was made ahead, measures `seconds` of it and as many images again, and ends it.

    multiple: workers bring so many batches at about the same time. sees_kernels: a few steps more are profiled on a
    GPU, as the time between two events on its stream counts the gaps between kernels as well. sees_waits: on a GPU,
    where that costs each call of torch 1 us, and an uncompiled step so more than a compiled one. limit_seconds: the
    end, if what was seen till then is enough for a rate (`Watched.is_told`); half of it is the end of using up.
    longest_seconds: the end, whatever was seen till then.

    Steps that are served from a stock, which shrinks, are no rate of the run: the measurement then begins again.
    """

    def __init__(
        self,
        *,
        seconds: float,
        limit_seconds: float,
        multiple: int,
        sees_kernels: bool,
        sees_waits: bool,
        longest_seconds: float = 0.0,
    ) -> None:
        self.sees_kernels = sees_kernels
        self.sees_waits = sees_waits
        self.seconds = seconds
        self.limit_seconds = limit_seconds
        self.longest_seconds = max(limit_seconds, longest_seconds)
        self.multiple = max(1, multiple)
        self.least_steps = max(_LEAST_STEPS, 3 * multiple)
        self.seen = Watched()
        self._began = 0.0
        self._num_warm = self._num_ready = 0
        self._has_begun_again = self._is_used_up = False
        self._own: dict[str, float] = {}
        self._device_clock: CudaClock | None = None
        self._step_clock: CudaClock | None = None
        self._found: Counter[str] = Counter()
        self._is_ordinary = False
        self._is_counting = False
        self._profiler: torch.profiler.profile | None = None
        self._num_profiled = 0
        self._device_total = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._clock: ActionClock = watch(trainer)
        simulated = [callback for callback in trainer.callbacks if hasattr(callback, "timeline")]  # type: ignore[attr-defined]
        self._simulated: Any = simulated[0] if simulated else None
        self._waits: HostWaits | None = None
        if trainer.strategy.root_device.type == "cuda":
            self._device_clock, self._step_clock = CudaClock(), CudaClock()
        if self._device_clock is not None and self.sees_waits:
            self._waits = HostWaits()
            self._clock.started.append(self._fetch_begins)
            self._clock.stopped.append(self._fetch_ends)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop_counting_waits()
        unwatch(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_profiling()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._note_waits()
        if self._device_clock is not None:
            if not self.seen.stamps:
                torch.cuda.synchronize()
            self._device_clock.start()
        self._launching_since = time.process_time()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        if self._device_clock is not None:
            self._device_clock.stop()
        if self.seen.phases:
            self._profile(trainer)
            return
        ahead = images_ahead(batch, trainer.train_dataloader)
        may_begin_again = not self._is_used_up  # later the stock shrinks in pauses of the storage, which count
        self._is_used_up |= bool(self.seen.launch_seconds) and num_ready(trainer.train_dataloader) == 0
        if not self.seen.launch_seconds:
            self._began = now  # compiling and the first step take what they take
        if not self.seen.stamps:
            self.seen.launch_seconds.append(time.process_time() - self._launching_since)
            self._num_warm += len(batch)
            self.seen.steady = self._num_warm > 2 * len(batch) + ahead
            must_begin = batch_idx >= trainer.num_training_batches // 3 or now - self._began > self.limit_seconds / 2
            if self.seen.steady or must_begin:
                self._look(trainer.strategy.root_device)
                self._begin(trainer)
            return
        self._stamp(now)
        self.seen.num_images.append(len(batch))
        self._making.append(_seconds_to_make(batch))
        self._is_ordinary = not is_logging_step(trainer)
        passed = now - self._began
        may_begin_again &= passed < _LAST_BEGIN * self.limit_seconds and not trainer.is_last_batch
        if may_begin_again and self._is_using_up(trainer):
            self._has_begun_again = True
            self._begin(trainer)
            return
        enough = now - self.seen.stamps[0] >= self.seconds and len(self.seen.num_images) > self.least_steps
        enough = enough and sum(self.seen.num_images) >= 2 * ahead and not has_few_pauses(self.seen.stamps)
        enough = enough or passed >= self.limit_seconds
        if (enough and self._is_told(trainer)) or passed >= self.longest_seconds or trainer.is_last_batch:
            self._end(trainer)  # what ends an epoch is no step
            self._profile(trainer)

    def _profile(self, trainer: Trainer) -> None:
        """Called after the last measured step and those that are profiled."""
        if not self.sees_kernels or trainer.strategy.root_device.type != "cuda":
            trainer.should_stop = True
        elif self._profiler is None:
            self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profiler.start()
        else:
            self._num_profiled += 1
            if self._num_profiled == _PROFILED_STEPS:
                self._stop_profiling()
                trainer.should_stop = True

    def _stop_profiling(self) -> None:
        """After all profiled steps, or those that were left of the fit."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        torch.cuda.synchronize()
        profiler.stop()
        if self._num_profiled:
            self.seen.kernel_seconds = kernel_seconds(profiler, num_steps=self._num_profiled) or None

    def _look(self, device: torch.device) -> None:
        """While the GPU computes what was launched."""
        if device.type == "cuda":
            self.seen.gpu_state, self.seen.conv_tf32 = read_gpu(device.index), convolutions_take_tf32()

    def _begin(self, trainer: Trainer) -> None:
        self._num_ready = num_ready(trainer.train_dataloader)
        self._busy, self._cpu = self._busy_seconds(), time.process_time()  # waits for the GPU
        self._own = dict(self._clock.own_seconds)
        self._making: list[float | None] = []
        self.seen.stamps, self.seen.num_images = [time.perf_counter()], [0]
        if self._step_clock is not None:
            self._step_clock = CudaClock()  # without the spans of a measurement that begins again
            self._step_clock.lap()

    def _is_using_up(self, trainer: Trainer) -> bool:
        """Whether the steps take more than a few batches from what was made before the first of them."""
        num_steps = max(self.least_steps, len(self.seen.num_images) - 1)
        taken = self._num_ready - num_ready(trainer.train_dataloader)
        return taken > max(self.multiple, _MOST_TAKEN * num_steps)

    def _is_told(self, trainer: Trainer) -> bool:
        """Of a loader that keeps up there is always a batch of each worker in stock."""
        loader: Any = trainer.train_dataloader
        lasts = min(self._num_ready, num_ready(loader)) >= self.multiple
        rounds = len(self.seen.num_images) - 1 >= LEAST_ROUNDS * self.multiple
        return lasts or rounds or not hasattr(loader, "num_ready")

    def _stamp(self, now: float) -> None:
        """The end of a step; of a GPU's, those that it has ended by now."""
        if self._step_clock is None:
            self.seen.stamps.append(now)
        else:
            self._step_clock.lap()
            self._note_ended(self._step_clock)

    def _note_ended(self, clock: CudaClock) -> None:
        for seconds in clock.finished_seconds():
            self.seen.stamps.append(self.seen.stamps[-1] + seconds)

    def _end(self, trainer: Trainer) -> None:
        num_steps = len(self.seen.num_images) - 1
        taken = self._num_ready - num_ready(trainer.train_dataloader)
        lasts = taken <= max(1, _MOST_TAKEN * num_steps)  # one may be half made
        self.seen.steady |= lasts and (not self._has_begun_again or self._num_ready <= self.multiple)
        self.seen.is_told = self._is_told(trainer)
        self._note_making(trainer)
        is_save, phases = saves(trainer), Counter[str]()
        for action, seconds in self._clock.own_seconds.items():
            phases[_phase(action, is_save)] += (seconds - self._own.get(action, 0.0)) / num_steps  # type: ignore[assignment]
        self.seen.phases = dict(phases)
        self.seen.cpu_seconds = (time.process_time() - self._cpu) / num_steps
        self.seen.device_seconds = (self._busy_seconds() - self._busy) / num_steps
        if self._step_clock is not None:
            self._note_ended(self._step_clock)  # `_busy_seconds` has waited for the GPU, which was behind
        self.seen.compile_seconds = compile_seconds(trainer)

    def _note_making(self, trainer: Trainer) -> None:
        """What the workers did for the batches of these steps."""
        workers: Any = getattr(trainer.train_dataloader, "loader", None)
        known = [seconds for seconds in self._making if seconds is not None]
        if workers is not None and known:
            self.seen.num_workers = float(max(1, workers.num_workers))
            self.seen.making_seconds = sum(known) / len(known)
            self.seen.images_before = (self._num_ready + 2 * self.seen.num_workers) * max(self.seen.num_images)

    def _busy_seconds(self) -> float:
        """Of the device, so far; without one what the host computed."""
        if self._simulated is not None:
            return float(self._simulated.timeline.busy_seconds)
        if self._device_clock is not None:
            torch.cuda.synchronize()
            self._device_total += sum(self._device_clock.finished_seconds())
            return self._device_total
        return self._clock.seconds[STEP]

    def _note_waits(self) -> None:
        """Waits since the last step began, unless that one read its metrics, as logging steps do."""
        waits = self._waits if self._simulated is None else self._simulated.waits
        if waits is None:
            return
        found = Counter({f"{wait.operation} at {wait.place}": num for wait, num in waits.found.items()})
        if self._is_ordinary:
            self.seen.waits += found - self._found
            self.seen.num_ordinary += 1
        self._found, self._is_ordinary = found, False

    def _fetch_begins(self, action: str) -> None:
        if action == FETCH:
            self._stop_counting_waits()

    def _fetch_ends(self, action: str, began: float, ended: float) -> None:
        if action == FETCH and self._waits is not None:
            self._is_counting = True
            self._waits.__enter__()

    def _stop_counting_waits(self) -> None:
        if self._is_counting and self._waits is not None:
            self._is_counting = False
            self._waits.__exit__(None, None, None)


def compile_seconds(trainer: Trainer) -> float | None:
    """That compiling and the capture of a CUDA graph took so far, before the first step; None without either."""
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    names = ("compile_seconds", "cuda_graph_seconds")
    found = [getattr(callback, name, None) for callback in callbacks for name in names]
    taken = [seconds for seconds in found if seconds is not None]
    return sum(taken) if taken else None


def images_ahead(batch: Batch, loader: Any) -> int:
    """Images that may be on their way when one is delivered: in batches made ahead, and in files read ahead. Of slow
    storage these come in bursts, which a measurement must outlast."""
    workers: Any = getattr(loader, "loader", None)
    if workers is None:
        return 0
    num_workers = max(1, workers.num_workers)
    ahead: int = (workers.prefetch_factor or 0) * len(batch) + 2 * batch.making.reads_in_flight
    return int(num_workers * ahead)


def _seconds_to_make(batch: Any) -> float | None:
    """Of a worker, for an image."""
    making = getattr(batch, "making", None)
    return None if making is None else making.decode_seconds / len(batch)


def num_ready(loader: Any) -> int:
    """Batches that are made and not yet asked for; 0 of a loader that makes none ahead."""
    return int(getattr(loader, "num_ready", 0))


def _phase(action: str, is_save: Callable[[str], bool]) -> str:
    """What the main process does in one of Lightning's actions. is_save: of `action_clock.saves`."""
    callback = action.removeprefix(CALLBACK).partition("{")[0].partition(".")[0] if action.startswith(CALLBACK) else ""
    if action == FETCH:
        return "fetch"
    if is_save(action):
        return "checkpoint"
    if action.startswith(LOGGER):
        return "logging"
    if callback in ("Rehearsal", "Watch"):
        return "device"
    return f"callback {callback}" if callback else "step"
