"""What the machine and the training did, moment by moment."""

import logging
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.errors import printable
from imagenet_opt.measure.telemetry.gpu import device_names
from imagenet_opt.measure.telemetry.gpu_history import nvml_words
from imagenet_opt.measure.telemetry.recorder import Recording
from imagenet_opt.measure.telemetry.timeline import FOLDER, KINDS
from imagenet_opt.run.hook_timer import FETCH, LOGGER, SAVE, STEP, attach, detach
from imagenet_opt.run.logging_step import is_logging_step, log_host_numbers

log = logging.getLogger(__name__)

_ACTIONS = {FETCH: "fetch", STEP: "step", SAVE: "checkpoint"}
MOST_CPU_PERCENT = 3.0
"""Of one CPU, for the recorder."""
STRETCH_SECONDS = 300.0
"""Over which that is looked at."""


class Timeline(Callback):
    """Records into the folder `timeline` of `folder`. A separate process samples ten times a second: CPUs, memory,
    disk, network, GPU, ready batches, step and phase. The start and end of each fetch, step, validation, checkpoint,
    log and epoch are recorded too. `imagenet_opt.measure.telemetry.timeline.read_timeline` reads it, docs/timeline.md
    describes it.

    | key | unit |
    |---|---|
    | `timeline/cpu_percent` | % of one CPU that the recorder has used since the last logged row |

    With several processes, rank 0 and its machine are recorded. Ready batches: from a loader with `num_ready`, as of
    the last step. Training continues, after one warning, if the recorder cannot start or continue (for example on a
    full disk), if the GPU's driver does not answer (then everything but the GPU is recorded), and if the recorder uses
    more than 3 % of a CPU over five minutes.
    """

    def __init__(self, *, folder: str | Path) -> None:
        self._folder = Path(folder) / FOLDER
        self._recording: Recording | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            try:
                self._recording = _start(self._folder, trainer.strategy.root_device)
            except Exception as error:  # of the system, of CUDA: none is worth a training
                log.warning("timeline: not recorded, training continues (%s)", printable(f"{error}"))
                return
            self._trainer, self._gauges = trainer, self._recording.gauges
            self._warned: set[str] = set()
            self._phases = [KINDS.index("other")]
            self._logged = self._looked_at = (0.0, 0.0)
            self._clock = attach(trainer)
            self._clock.started.append(self._action_started)
            self._clock.stopped.append(self._action_stopped)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_began = time.perf_counter()  # of an epoch that goes on, Lightning tells no start

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_began = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._recording is not None:
            self._add("epoch", self._epoch_began, time.perf_counter())

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._recording is not None:
            self._validation_began = time.perf_counter()
            self._enter("validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._recording is not None:
            self._leave("validation", self._validation_began, time.perf_counter())

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._recording is not None and is_logging_step(trainer):
            self._warn(self._recording)
            log_host_numbers(pl_module, self._cost())

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._recording is not None:
            self._clock.started.remove(self._action_started)
            self._clock.stopped.remove(self._action_stopped)
            detach(self._trainer)
            self._recording.stop()
            self._warn(self._recording)
            self._recording = None

    def _warn(self, recording: Recording) -> None:
        if recording.is_lost():
            self._say("no longer recorded, training continues", printable(f"{recording.error}"))
        if error := int(self._gauges["nvml_error"]):
            self._say("the GPU's columns have gaps or are absent, all else is recorded", nvml_words(error))
        seconds, cpu_seconds = self._taken()
        before, cpu_before = self._looked_at
        if seconds - before >= STRETCH_SECONDS:
            self._looked_at = seconds, cpu_seconds
            if (percent := 100 * (cpu_seconds - cpu_before) / (seconds - before)) > MOST_CPU_PERCENT:
                remedy = "'~callbacks.timeline' trains without it"
                self._say(f"recording takes more than {MOST_CPU_PERCENT:g} % of a CPU", f"{percent:.1f} %; {remedy}")

    def _say(self, what: str, why: str) -> None:
        """Log a warning once."""
        if what not in self._warned:
            self._warned.add(what)
            log.warning("timeline: %s (%s)", what, why)

    def _taken(self) -> tuple[float, float]:
        """Seconds that the recorder has run, and the CPU seconds that it has used, as last reported."""
        return self._gauges["recorder_seconds"], self._gauges["recorder_cpu_seconds"]

    def _cost(self) -> dict[str, float]:
        """The logged key; empty if the recorder has reported nothing new."""
        (seconds, cpu_seconds), (before, cpu_before) = self._taken(), self._logged
        if seconds <= before:
            return {}
        self._logged = seconds, cpu_seconds
        return {"timeline/cpu_percent": 100 * (cpu_seconds - cpu_before) / (seconds - before)}

    def _action_started(self, action: str) -> None:
        if (kind := _kind(action)) is not None:
            self._enter(kind)

    def _action_stopped(self, action: str, began: float, ended: float) -> None:
        if (kind := _kind(action)) is not None:
            if kind == "fetch":
                self._gauges["step"] = self._trainer.global_step
            if kind in ("fetch", "step"):
                self._gauges["queue_depth"] = getattr(self._trainer.train_dataloader, "num_ready", float("nan"))
            self._leave(kind, began, ended)

    def _enter(self, kind: str) -> None:
        self._phases.append(KINDS.index(kind))
        self._gauges["phase"] = self._phases[-1]

    def _leave(self, kind: str, began: float, ended: float) -> None:
        self._phases.pop()
        self._gauges["phase"] = self._phases[-1]
        self._add(kind, began, ended)

    def _add(self, kind: str, began: float, ended: float) -> None:
        """Record an event. Times are those of `time.perf_counter`."""
        since = time.time() - time.perf_counter()
        self._gauges.add_event(KINDS.index(kind), since + began, since + ended)


def _start(folder: Path, device: torch.device) -> Recording:
    return Recording(folder, device_names(device.index) if device.type == "cuda" else None)


def _kind(action: str) -> str | None:
    return "logging" if action.startswith(LOGGER) else _ACTIONS.get(action)
