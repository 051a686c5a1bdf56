"""Records the activity of the machine and the phases of training, ten times a second."""

import logging
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.errors import printable
from imagenet_opt.measure.telemetry.gpu import device_names
from imagenet_opt.measure.telemetry.gpu_history import nvml_words
from imagenet_opt.measure.telemetry.recorder import Recording
from imagenet_opt.measure.telemetry.timeline import FOLDER, KINDS
from imagenet_opt.run.hook_timer import FETCH, LOGGER, SAVE, STEP, attach, detach
from imagenet_opt.run.rows import is_logging_step, log_numbers

log = logging.getLogger(__name__)

_ACTIONS = {FETCH: "fetch", STEP: "step", SAVE: "checkpoint"}
MOST_CPU_PERCENT = 3.0
"""The recorder logs a warning when it uses more than this percentage of one CPU."""
STRETCH_SECONDS = 300.0
"""Time over which the recorder's use of the CPU is averaged."""


class Timeline(Callback):
    """Records into the folder `timeline` of `folder`. A separate process samples ten times a second: CPUs, memory,
    disk, network, GPU, ready batches, step and phase. The start and end of each fetch, step, validation, checkpoint,
    log and epoch are recorded too. `imagenet_opt.measure.telemetry.timeline.read_timeline` reads the files,
    docs/timeline.md describes them.

    | key | unit |
    |---|---|
    | `timeline/cpu_percent` | % of one CPU that the recorder has used since the last logged row |

    With several processes, rank 0 and its machine are recorded. Ready batches: from a loader with `num_ready`, at the
    last step. Training continues, after one warning, if the recorder cannot start or continue (for example on a full
    disk), if the GPU's driver does not answer (everything but the GPU is recorded), and if the recorder uses more than
    3 % of a CPU over five minutes.
    """

    def __init__(self, *, folder: str | Path) -> None:
        self._folder = Path(folder) / FOLDER
        self._recording: Recording | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            try:
                device = trainer.strategy.root_device
                names = device_names(device.index) if device.type == "cuda" else None
                self._recording = Recording(self._folder, names)
            except Exception as error:  # no error of the system or of CUDA may end the training
                log.warning("timeline: not recorded, training continues (%s)", printable(f"{error}"))
                return
            self._trainer, self._gauges = trainer, self._recording.gauges
            self._warned: set[str] = set()
            self._phases = [KINDS.index("other")]
            self._logged = self._checked = (0.0, 0.0)
            self._clock = attach(trainer)
            self._clock.started.append(self._action_started)
            self._clock.stopped.append(self._action_stopped)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A run that resumes inside an epoch calls no on_train_epoch_start.
        self._epoch_began = time.perf_counter()

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
            log_numbers(trainer, self._cost())

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
            self._warn_once("no longer recorded, training continues", printable(f"{recording.error}"))
        if error := int(self._gauges["nvml_error"]):
            self._warn_once("the GPU's columns have gaps or are absent, all else is recorded", nvml_words(error))
        seconds, cpu_seconds = self._recorder_seconds()
        before, cpu_before = self._checked
        if seconds - before >= STRETCH_SECONDS:
            self._checked = seconds, cpu_seconds
            if (percent := 100 * (cpu_seconds - cpu_before) / (seconds - before)) > MOST_CPU_PERCENT:
                reason = f"{percent:.1f} %; '~callbacks.timeline' trains without it"
                self._warn_once(f"recording takes more than {MOST_CPU_PERCENT:g} % of a CPU", reason)

    def _warn_once(self, message: str, reason: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning("timeline: %s (%s)", message, reason)

    def _recorder_seconds(self) -> tuple[float, float]:
        """The recorder's last report of its seconds: since its start, and of CPU."""
        return self._gauges["recorder_seconds"], self._gauges["recorder_cpu_seconds"]

    def _cost(self) -> dict[str, float]:
        """The logged key; empty if the recorder has reported nothing new."""
        (seconds, cpu_seconds), (before, cpu_before) = self._recorder_seconds(), self._logged
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
        """Record an event. began, ended: of `time.perf_counter`."""
        since = time.time() - time.perf_counter()
        self._gauges.add_event(KINDS.index(kind), since + began, since + ended)


def _kind(action: str) -> str | None:
    return "logging" if action.startswith(LOGGER) else _ACTIONS.get(action)
