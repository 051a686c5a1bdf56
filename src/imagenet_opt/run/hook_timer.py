"""What callbacks of a fit share: a timer of each of Lightning's actions (fetching a batch, every hook of every
callback, each logger), the time of the device in training steps, and the recorder of the machine."""

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from weakref import WeakKeyDictionary

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler

from imagenet_opt.measure.telemetry.cuda_clock import CudaClock
from imagenet_opt.measure.telemetry.gpu import device_names
from imagenet_opt.measure.telemetry.recorder import Recorder
from imagenet_opt.run.hooks import SimulatesDevice, callbacks_of

FETCH = "[_TrainingEpochLoop].train_dataloader_next"
SAVE = "save_checkpoint"
STEP = "run_training_batch"
CALLBACK, LOGGER = "[Callback]", "[Logger]"
"""Prefixes of the actions of callbacks and loggers; the class and the method follow."""


def phases(trainer: Trainer) -> Callable[[str], str]:
    """A function from an action to the phase of the main process that it belongs to: "fetch", "checkpoint" (the save,
    each `on_save_checkpoint`, and every hook of this trainer's `Checkpoint` callbacks), "logging", "callback CLASS", or
    else "step"."""
    # The state key of a callback begins with its class name, as the name of an action does.
    savers = tuple(f"{CALLBACK}{callback.state_key}." for callback in trainer.checkpoint_callbacks)

    def phase_of(action: str) -> str:
        if action == FETCH:
            return "fetch"
        if action == SAVE or action.endswith(".on_save_checkpoint") or action.startswith(savers):
            return "checkpoint"
        if action.startswith(LOGGER):
            return "logging"
        if action.startswith(CALLBACK):
            return f"callback {action.removeprefix(CALLBACK).partition('{')[0].partition('.')[0]}"
        return "step"

    return phase_of


class HookTimer(Profiler):
    """Times actions in a Trainer and forwards every call to the profiler that the user chose, which the Trainer has
    again when its run has ended. After a run that failed, the next run begins with the user's profiler.

    seconds: total by action, with nested actions; own_seconds: without nested actions. Actions have Lightning's names,
    such as "[Callback]Checkpoint.on_train_batch_end" or FETCH, and "[Logger]MetricsCsv.log_metrics".
    started, stopped: listeners, called with (action) and (action, began, ended) in seconds of `time.perf_counter`.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        owner: Any = trainer
        self._owner = owner
        self.inner: Profiler = owner.profiler
        owner.profiler = self
        for logger in trainer.loggers:
            _time(logger, self)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.own_seconds: defaultdict[str, float] = defaultdict(float)
        self.started: list[Callable[[str], None]] = []
        self.stopped: list[Callable[[str, float, float], None]] = []
        self._running: list[tuple[str, float]] = []
        self._inside = [0.0]  # seconds of nested actions, for each running action; the first entry is the top level

    def start(self, action_name: str) -> None:
        self.inner.start(action_name)
        for listener in self.started:
            listener(action_name)
        self._inside.append(0.0)
        self._running.append((action_name, time.perf_counter()))

    def stop(self, action_name: str) -> None:
        """Stop the action and all actions still open inside it; an action that was not started is ignored."""
        ended = time.perf_counter()
        if any(action == action_name for action, _ in self._running):
            while self._end(ended) != action_name:
                pass
        self.inner.stop(action_name)

    def _end(self, ended: float) -> str:
        """End the innermost action and return its name."""
        action, began = self._running.pop()
        inside = self._inside.pop()
        self._inside[-1] += ended - began
        self.seconds[action] += ended - began
        self.own_seconds[action] += ended - began - inside
        for listener in self.stopped:
            listener(action, began, ended)
        return action

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Called when a run begins: Lightning does not call `describe` after one that failed."""
        self._leave()
        self.inner.setup(stage, local_rank, log_dir)

    def summary(self) -> str:
        return self.inner.summary()

    def describe(self) -> None:
        """Called when a run has ended, after all other actions."""
        self._leave()
        self.inner.describe()

    def teardown(self, stage: str | None) -> None:
        self.inner.teardown(stage)

    def _leave(self) -> None:
        self._owner.profiler = self.inner
        for logger in self._owner.loggers:
            vars(logger).pop("log_metrics", None)


def clock_of(trainer: Trainer) -> HookTimer:
    """The clock of this run, which all callbacks share; starts it at the first call. Call in `setup`."""
    profiler: Any = trainer.profiler  # type: ignore[attr-defined]
    return profiler if isinstance(profiler, HookTimer) else HookTimer(trainer)


def _time(logger: Logger, clock: HookTimer) -> None:
    log_metrics, action = logger.log_metrics, f"{LOGGER}{type(logger).__name__}.log_metrics"

    def timed(*args: Any, **options: Any) -> None:
        with clock.profile(action):
            log_metrics(*args, **options)

    vars(logger)["log_metrics"] = timed


class BetweenFetches:
    """Enters `mode` when a batch has been fetched, and leaves it when the next fetch begins or at `stop`. fetches:
    names of the actions that fetch a batch."""

    def __init__(self, clock: HookTimer, mode: AbstractContextManager[Any], *fetches: str) -> None:
        self._mode, self._fetches, self._entered = mode, fetches, ExitStack()
        clock.started.append(self._started)
        clock.stopped.append(self._stopped)

    def stop(self) -> None:
        self._entered.close()

    def _started(self, action: str) -> None:
        if action in self._fetches:
            self.stop()

    def _stopped(self, action: str, began: float, ended: float) -> None:
        if action in self._fetches:
            self._entered.enter_context(self._mode)


class DeviceWork(CudaClock):
    """Seconds of the device in training steps, from `start` to `stop` of each: of a GPU by CUDA events, which include
    the gaps between kernels; of a simulated device by its timeline; of a CPU the host's time in the step.

    simulated: the callback that simulates a device, or None.
    """

    def __init__(self, trainer: Trainer, clock: HookTimer) -> None:
        super().__init__(trainer.strategy.root_device)
        self.simulated = next((each for each in callbacks_of(trainer) if isinstance(each, SimulatesDevice)), None)
        self._clock, self._on_gpu = clock, trainer.strategy.root_device.type == "cuda"
        self._gpu_seconds = 0.0

    def seconds(self) -> float:
        """Of all steps that the device has finished by now."""
        if self.simulated is not None:
            return self.simulated.timeline.busy_seconds
        self._gpu_seconds += sum(self.finished_seconds())
        return self._gpu_seconds if self._on_gpu else self._clock.seconds[STEP]


_recorders: "WeakKeyDictionary[Trainer, Recorder]" = WeakKeyDictionary()


def recorder_of(trainer: Trainer) -> Recorder:
    """The recorder of this fit; starts it at the first call. Call in `setup`, and `stop` it in `on_exception` and
    `teardown`: the first callback to do so ends it for all."""
    recorder = _recorders.get(trainer)
    if recorder is None or not recorder.is_running:
        device = trainer.strategy.root_device
        recorder = _recorders[trainer] = Recorder(device_names(device.index) if device.type == "cuda" else None)
    return recorder
