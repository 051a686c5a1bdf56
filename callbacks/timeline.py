"""Records the activity of the machine and the phases of training, five times a second."""

import math
import time
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.measure.telemetry.recorder import Recorder
from imagenet_opt.measure.telemetry.timeline import FOLDER
from imagenet_opt.run.hook_timer import FETCH, LOGGER, SAVE, STEP, clock_of, recorder_of
from imagenet_opt.run.hooks import MeasuredLoader

_ACTIONS = {FETCH: "fetch", STEP: "step", SAVE: "checkpoint"}


class Timeline(Callback):
    """Records into the folder `timeline` of `folder`. A thread samples five times a second: CPUs, memory, disk,
    network, GPU, ready batches and step. The start and end of each fetch, step, validation, checkpoint, log and epoch
    are recorded too. `imagenet_opt.measure.telemetry.timeline.read_timeline` reads the files, docs/bottleneck.md
    describes them.

    Logs nothing. With several processes, rank 0 and its machine are recorded. Ready batches: from a `MeasuredLoader`
    (run/hooks.py), at the last step. Training continues, after one warning, if the files cannot be written (for example
    on a full disk), and if the GPU's driver does not answer (everything but the GPU is recorded).
    """

    def __init__(self, *, folder: str | Path) -> None:
        self._folder = Path(folder) / FOLDER
        self._recorder: Recorder | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            self._trainer, self._recorder = trainer, recorder_of(trainer)
            self._loader: MeasuredLoader | None = None
            self._recorder.write_to(self._folder)
            clock_of(trainer).stopped.append(self._action_stopped)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)  # Lightning does not call it if a run resumes inside an epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_began, loader = time.perf_counter(), trainer.train_dataloader
        self._loader = loader if isinstance(loader, MeasuredLoader) else None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._add("epoch", self._epoch_began, time.perf_counter())

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_began = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._add("validation", self._validation_began, time.perf_counter())

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()
            self._recorder = None

    def _action_stopped(self, action: str, began: float, ended: float) -> None:
        kind = "logging" if action.startswith(LOGGER) else _ACTIONS.get(action)
        if self._recorder is not None and kind is not None:
            gauges = self._recorder.gauges
            if kind == "fetch":
                gauges["step"] = self._trainer.global_step
            if kind in ("fetch", "step"):
                gauges["queue_depth"] = math.nan if self._loader is None else self._loader.num_ready
            self._add(kind, began, ended)

    def _add(self, kind: str, began: float, ended: float) -> None:
        """Record an event. began, ended: of `time.perf_counter`."""
        since = time.time() - time.perf_counter()
        if self._recorder is not None:
            self._recorder.add_event(kind, since + began, since + ended)
