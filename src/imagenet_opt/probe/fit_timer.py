"""Times steps of the real trainer."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.data.batch import Batch
from imagenet_opt.measure.stats.rate import LEAST_ROUNDS, has_few_pauses
from imagenet_opt.measure.telemetry.cuda_clock import Moment
from imagenet_opt.measure.telemetry.gpu import GpuState, read_gpu
from imagenet_opt.measure.telemetry.host_syncs import HostSyncs
from imagenet_opt.measure.telemetry.thread_time import ThreadTime, thread_time
from imagenet_opt.measure.telemetry.torch_profile import kernel_seconds
from imagenet_opt.probe.ahead import images_ahead
from imagenet_opt.run.hook_timer import FETCH, BetweenFetches, DeviceWork, HookTimer, clock_of, phases
from imagenet_opt.run.hooks import Compiles, MeasuredLoader, callbacks_of, compile_seconds
from imagenet_opt.run.rows import is_logging_step

_LEAST_STEPS = 8
_PROFILED_STEPS = 5
_WAITING = ("callback Rehearsal", "callback FitTimer")


@dataclass
class FitTiming:
    """Timing of a fit.

    stamps: seconds at the start and at the end of each step, by `Moment`. num_images, made_at: per stamp, the images of
    its step, and when the workers had made its batch and all batches before it; 0 images for the first. phases: seconds
    per step of the main process, by activity. device_seconds: per step, see `DeviceWork`. waits: places where the host
    waited for the device in steps without logging ("operation at file:line"), with counts. num_ordinary: number of
    those steps. cpu_seconds: CPU
    time of this process per step. main_slowdown: time in which the main thread computed or waited for a CPU / time in
    which it computed. copy_seconds: per batch, time of the copy to the GPU by a loader that runs at the same time; None
    without a copy. gpu_state: while the device computed. kernel_seconds: time of kernels per step; None if they were
    not profiled or not recorded. launch_seconds: CPU time of this process in each warm-up step, in which no launch
    waits for the GPU. compile_seconds: of the compilation. has_rate: whether there were enough steps for a rate.
    """

    stamps: list[float] = field(default_factory=list)
    num_images: list[int] = field(default_factory=list)
    made_at: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    device_seconds: float = 0.0
    waits: Counter[str] = field(default_factory=Counter)
    num_ordinary: int = 0
    cpu_seconds: float = 0.0
    main_slowdown: float = 1.0
    copy_seconds: float | None = None
    gpu_state: GpuState | None = None
    kernel_seconds: float | None = None
    launch_seconds: list[float] = field(default_factory=list)
    compile_seconds: float | None = None
    has_rate: bool = True

    @property
    def step_seconds(self) -> list[float]:
        return [end - begin for begin, end in pairwise(self.stamps)]


@dataclass(frozen=True)
class _Counts:
    """What was counted when the measurement began: seconds of the device, of this process's CPU time, of the main
    thread, and of Lightning's actions."""

    device: float
    cpu: float
    main: ThreadTime
    actions: dict[str, float]


class FitTimer(Callback):
    """Callback that measures a fit after a warm-up, then ends the fit.

    It times single steps, callbacks/throughput.py windows of a whole run; of the same steps both have the same rate.

    The warm-up uses the batches that workers made before the first step ended, since the network is compiled meanwhile.
    Batches that were made later do not raise the rate, see `throughput.fit_ceiling`. But if workers have several reads
    in flight, they also have files in memory, which hide a slow storage. Then the warm-up uses all images in
    preparation, and the measurement lasts for twice as many, and for `seconds`.

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
        self._part: Literal["warm-up", "measurement", "profile"] = "warm-up"
        self._began, self._launching_since, self._num_warm = 0.0, 0.0, 0
        self._queue_filled_at, self._is_fresh = 0.0, False
        self._before = _Counts(0.0, 0.0, ThreadTime(), {})
        self._profiler: torch.profiler.profile | None = None
        self._num_profiled = 0
        self._waits: HostSyncs | None = None
        self._waits_before, self._is_ordinary = Counter[str](), False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._on_gpu, self._clock = trainer.strategy.root_device.type == "cuda", clock_of(trainer)
        self._work = DeviceWork(trainer, self._clock)
        if self.sees_waits and self._on_gpu and self._work.simulated is None:
            self._waits = HostSyncs()
            self._counting = BetweenFetches(self._clock, self._waits, FETCH)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._waits is not None:
            self._counting.stop()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_profiling()  # the fit may have had no more steps

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._count_waits()
        if self._part == "warm-up":
            self._finish()
        self._work.start()
        self._launching_since = time.process_time()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now, timing = time.perf_counter(), self.timing
        self._work.stop()
        if self._part == "profile":
            self._profile(trainer)
        elif self._part == "warm-up":
            self._warm_up(trainer, batch, batch_idx, now)
        else:
            self._ends.append(Moment(trainer.strategy.root_device))
            self._note_ends()
            timing.num_images.append(len(batch))
            timing.made_at.append(max(timing.made_at[-1], self._made_at(batch)))
            self._is_ordinary = not is_logging_step(trainer)
            if self._is_over(trainer, batch, now):
                self._end(trainer)  # the end of an epoch is not part of a step
                self._part = "profile"
                self._profile(trainer)

    def _count_waits(self) -> None:
        """Count the waits of the last step, if it was measured and logged nothing: a logging step queues a row of
        metrics. A simulated device counts its own waits."""
        simulated: Any = self._work.simulated
        if (waits := self._waits if simulated is None else simulated.waits) is not None:
            places = Counter({f"{wait.operation} at {wait.place}": num for wait, num in waits.counts.items()})
            if self._is_ordinary:
                self.timing.waits += places - self._waits_before
                self.timing.num_ordinary += 1
            self._waits_before, self._is_ordinary = places, False

    @property
    def _num_steps(self) -> int:
        return len(self.timing.num_images) - 1

    def _warm_up(self, trainer: Trainer, batch: Any, batch_idx: int, now: float) -> None:
        """Before the measurement."""
        if not self.timing.launch_seconds:
            self._began = now  # compiling and the first step do not count against the limit
            self._queue_filled_at = time.monotonic()
        self.timing.launch_seconds.append(time.process_time() - self._launching_since)
        self._num_warm += len(batch)
        is_warm = self._num_warm > (1 + self.multiple) * len(batch) + _images_read_ahead(batch, trainer)
        self._is_fresh = not 0 < _made_at(batch) < self._queue_filled_at
        must_begin = batch_idx >= trainer.num_training_batches // 3 or now - self._began > self.limit_seconds / 2
        if (is_warm and self._is_fresh) or must_begin:
            if self._on_gpu:  # while the GPU still computes
                self.timing.gpu_state = read_gpu(trainer.strategy.root_device.index)
            self._finish()
            actions = dict(self._clock.own_seconds)
            self._before = _Counts(self._work.seconds(), time.process_time(), thread_time(), actions)
            self._part = "measurement"
            self.timing.stamps, self.timing.num_images = [time.perf_counter()], [0]
            self.timing.made_at = [self._made_at(batch)]
            self._ends = deque([Moment(trainer.strategy.root_device)])

    def _finish(self) -> None:
        """Wait until the GPU has finished all steps so far."""
        if self._on_gpu:
            torch.cuda.synchronize()

    def _note_ends(self) -> None:
        """Stamp the end of each step that the device has finished by now."""
        while len(self._ends) > 1 and self._ends[1].is_reached():
            began = self._ends.popleft()
            self.timing.stamps.append(self.timing.stamps[-1] + self._ends[0].seconds_since(began))

    def _made_at(self, batch: Any) -> float:
        """When the batch was made; 0 for all if the first was made before the first step ended, as workers pause while
        the network is compiled."""
        return _made_at(batch) if self._is_fresh else 0.0

    def _is_over(self, trainer: Trainer, batch: Any, now: float) -> bool:
        """Whether the measurement is complete."""
        timing, passed = self.timing, now - self._began
        enough = now - timing.stamps[0] >= self.seconds and self._num_steps >= self.least_steps
        enough = enough and sum(timing.num_images) >= 2 * _images_read_ahead(batch, trainer)
        enough = enough and not has_few_pauses(timing.stamps)
        enough = enough or passed >= self.limit_seconds
        return (enough and self._has_rate(trainer)) or passed >= self.longest_seconds or trainer.is_last_batch

    def _has_rate(self, trainer: Trainer) -> bool:
        """Whether each worker has made enough batches."""
        has_workers = isinstance(trainer.train_dataloader, MeasuredLoader)
        return self._num_steps >= LEAST_ROUNDS * self.multiple or not has_workers

    def _end(self, trainer: Trainer) -> None:
        timing, before, num_steps = self.timing, self._before, self._num_steps
        timing.has_rate = self._has_rate(trainer)
        seconds = phase_seconds(self._clock, before.actions, phases(trainer))
        timing.phases = {name: each / num_steps for name, each in seconds.items()}
        timing.cpu_seconds = (time.process_time() - before.cpu) / num_steps
        main = thread_time().since(before.main)
        timing.main_slowdown = 1 + main.queued / main.cpu if main.cpu else 1.0
        self._finish()
        timing.device_seconds = (self._work.seconds() - before.device) / num_steps
        self._note_ends()
        timing.compile_seconds = compile_seconds(each for each in callbacks_of(trainer) if isinstance(each, Compiles))

    def _profile(self, trainer: Trainer) -> None:
        """Called after the last measured step and after each profiled step."""
        self._num_profiled += self._profiler is not None
        if not (self._on_gpu and self.sees_kernels) or self._num_profiled == _PROFILED_STEPS:
            self._stop_profiling()
            trainer.should_stop = True
        elif self._profiler is None:
            self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profiler.start()

    def _stop_profiling(self) -> None:
        if self._profiler is not None:
            torch.cuda.synchronize()
            self._profiler.stop()
            if self._num_profiled:
                self.timing.kernel_seconds = kernel_seconds(self._profiler, num_steps=self._num_profiled) or None
            self._profiler = None


def _images_read_ahead(batch: Any, trainer: Trainer) -> int:
    """Images in preparation, if workers have several reads in flight; else 0."""
    ahead = images_ahead(batch, trainer.train_dataloader)
    return ahead if ahead and batch.stats.reads_in_flight > 1 else 0


def _made_at(batch: Any) -> float:
    """When a worker had made the batch, by `time.monotonic`; 0 if unknown."""
    return batch.stats.made_at if isinstance(batch, Batch) else 0.0


def phase_seconds(clock: HookTimer, before: dict[str, float], phase_of: Callable[[str], str]) -> dict[str, float]:
    """Seconds of each phase of the main process. before: seconds of Lightning's actions when the measurement began.
    phase_of: see `hook_timer.phases`; here the callbacks that wait for the device are the phase "device"."""
    seconds_of = defaultdict[str, float](float)
    for action, seconds in clock.own_seconds.items():
        phase = phase_of(action)
        seconds_of["device" if phase in _WAITING else phase] += seconds - before.get(action, 0.0)
    return dict(seconds_of)
