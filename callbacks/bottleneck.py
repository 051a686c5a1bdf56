"""Finds out during training why the device is idle."""

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from imagenet_opt.measure.telemetry.idle_causes import MIN_STEPS, Attribution, IdleWindow, attribute, sentence
from imagenet_opt.measure.telemetry.recorder import Recorder
from imagenet_opt.measure.telemetry.thread_time import sees_run_queue, thread_time
from imagenet_opt.run.hook_timer import FETCH, DeviceWork, HookTimer, clock_of, phases, recorder_of
from imagenet_opt.run.hooks import MeasuredLoader
from imagenet_opt.run.rows import is_logging_step, log_numbers

Sums = dict[str, float]
WORKER = {"read": "read_seconds", "decode": "decode_seconds", "cpu": "cpu_wait_seconds"}
"""Cause -> the loader's metric of a worker's time."""


class Bottleneck(Callback):
    """Divides the time since the last logged row into shares, by the device's work or the reason of its wait. The
    shares add up to 1. The rules are in `imagenet_opt.measure.telemetry.idle_causes`.

    | key | share of the time, 0 to 1 |
    |---|---|
    | `bottleneck/busy` | the device computes (below); on a CPU, the host's time in the step |
    | `bottleneck/read` | the device waits for a batch whose worker waits for the storage |
    | `bottleneck/decode` | the device waits for a batch whose worker computes: mostly decoding |
    | `bottleneck/cpu` | the device waits, because a worker or the main thread waits for a CPU (in the run queue) |
    | `bottleneck/main_process` | the device waits for callbacks, or for the thread that delivers batches |
    | `bottleneck/logging` | the device waits for loggers |
    | `bottleneck/checkpoint` | the device waits for the save of a checkpoint |
    | `bottleneck/validation` | the device waits for a validation |
    | `bottleneck/copy` | the device waits for the copy of a batch |
    | `bottleneck/unexplained` | all other time; without a `MeasuredLoader` (run/hooks.py), any wait for a batch |

    On a GPU, `busy` is the time from the start to the end of the device's work on each step, by CUDA events, but at
    most the time in which any kernel ran, by NVML: with slow launches, a GPU is idle between the kernels of a step.
    Without NVML, `busy` has these gaps in it. A step counts from this callback's `on_train_batch_start`. The resize of
    the batch and the mixing are queued earlier and not counted.

    Where `/proc/thread-self/schedstat` is missing or zero (gVisor), waits for a CPU count as `decode` or `unexplained`.

    Rows are logged at logging steps, at least 20 steps apart. The first step is start-up and left out. When two
    consecutive rows have the same new largest cause, the terminal shows the cause. With several processes, rank 0 is
    measured.
    """

    def __init__(self) -> None:
        self._clock: HookTimer | None = None
        self._recorder: Recorder | None = None
        self._shares: Mapping[str, float] = {}
        self._first: Sums | None = None
        self._last: Sums | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._clock = None
        if stage == "fit":
            self._clock = clock_of(trainer)
            self._phase_of = cache(phases(trainer))
            self._work = DeviceWork(trainer, self._clock)
            is_cuda = trainer.strategy.root_device.type == "cuda"
            self._recorder = recorder_of(trainer) if is_cuda and trainer.is_global_zero else None
            self._first = self._last = None
            self._num_steps, self._validation_seconds = 0, 0.0
            self._within_validation: Sums = {}
            self._printed = self._verdict_before = "healthy"
            self._shares = {}
            if not sees_run_queue():
                rank_zero_info("bottleneck: this system reports no waits for a CPU (/proc/thread-self/schedstat)")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._work.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._work.stop()
        self._num_steps += 1
        if self._last is None:
            self._first = self._last = self._sums(trainer)
        elif is_logging_step(trainer) and self._num_steps - self._last["steps"] >= MIN_STEPS:
            before, self._last = self._last, self._sums(trainer)
            attribution = attribute(_window(_difference(before, self._last), _num_workers(trainer)))
            log_numbers(trainer, _row(attribution.shares))
            self._tell(attribution)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._clock is not None:
            self._validation_began, self._before_validation = time.perf_counter(), self._actions()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the time of callbacks and loggers during a validation as validation."""
        if self._clock is not None:
            self._validation_seconds += time.perf_counter() - self._validation_began
            within = _difference(self._before_validation, self._actions())
            self._within_validation = {name: self._within_validation.get(name, 0.0) + within[name] for name in within}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._first is not None and self._num_steps - self._first["steps"] >= MIN_STEPS:
            sums = _difference(self._first, self._sums(trainer))
            self._shares = attribute(_window(sums, _num_workers(trainer))).shares

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._recorder is not None:
            self._recorder.stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._recorder is not None:
            self._recorder.stop()

    def summary(self) -> dict[str, float]:
        """Shares of the time of the run, under the logged keys; empty if the run was too short."""
        return _row(self._shares)

    def _tell(self, attribution: Attribution) -> None:
        """Print a new verdict once two consecutive rows have it; the first verdict is "healthy", without a line."""
        if attribution.verdict == self._verdict_before != self._printed:
            self._printed = attribution.verdict
            rank_zero_info(f"bottleneck: {sentence(attribution.shares)}")
        self._verdict_before = attribution.verdict

    def _sums(self, trainer: Trainer) -> Sums:
        """Seconds and counts since the start."""
        assert self._clock is not None
        actions = self._actions()
        for name, seconds in self._within_validation.items():
            actions[name] -= seconds
        totals = loader.totals() if isinstance(loader := trainer.train_dataloader, MeasuredLoader) else {}
        recorded = {} if self._recorder is None else self._recorder.totals
        percent_seconds, seen_seconds = recorded.get("gpu_utilization_percent", (0.0, 0.0))
        times = {
            "seconds": time.perf_counter(),
            "steps": self._num_steps,
            "device": self._work.seconds(),
            "kernels": percent_seconds / 100,
            "seen": seen_seconds,
            "fetch_wait": self._clock.seconds[FETCH],
            "validation": self._validation_seconds,
            "cpu_wait": thread_time().queued,
        }
        loader = {f"loader/{name}": total for name, total in totals.items()}
        return actions | loader | times

    def _actions(self) -> dict[str, float]:
        """Seconds so far of all callbacks, loggers and saves, without those of nested actions."""
        assert self._clock is not None
        sums = dict.fromkeys(("callbacks", "checkpoint", "logging"), 0.0)
        for action, seconds in self._clock.own_seconds.items():
            phase = self._phase_of(action)
            kind = "callbacks" if phase.startswith("callback ") else phase
            if kind in sums:
                sums[kind] += seconds
        return sums


def _difference(before: Sums, after: Sums) -> Sums:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _window(sums: Sums, num_workers: int) -> IdleWindow:
    def mean(name: str) -> float:
        return sums.get(f"loader/{name}", 0.0) / max(1.0, sums.get("loader/batches", 0.0))

    return IdleWindow(
        seconds=sums["seconds"],
        num_steps=int(sums["steps"]),
        device_seconds=sums["device"],
        fetch_wait_seconds=sums["fetch_wait"],
        validation_seconds=sums["validation"],
        checkpoint_seconds=sums["checkpoint"],
        logging_seconds=sums["logging"],
        callback_seconds=sums["callbacks"],
        kernel_seconds=sums["seconds"] * sums["kernels"] / sums["seen"] if sums["seen"] else None,
        copy_seconds=sums.get("loader/copy_seconds", 0.0),
        cpu_wait_seconds=sums["cpu_wait"],
        worker_seconds={cause: mean(name) for cause, name in WORKER.items()},
        num_workers=num_workers,
        queue_depth=mean("queue_depth"),
        queue_seconds=mean("queue_seconds"),
    )


def _num_workers(trainer: Trainer) -> int:
    return int(getattr(trainer.train_dataloader, "num_workers", 0))


def _row(shares: Mapping[str, float]) -> dict[str, float]:
    return {f"bottleneck/{cause}": share for cause, share in shares.items()}
