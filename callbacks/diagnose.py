"""Ends a fit with a diagnosis: what limits its loop, found by experiment on its first batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import dataloader

from imagenet_opt.diagnosis.cause import conclude
from imagenet_opt.diagnosis.hook import Hook
from imagenet_opt.diagnosis.measurements import check_seconds
from imagenet_opt.errors import ConfigError


class Diagnose(Callback):
    """Makes the training loop of this fit the experiments of `imagenet_opt.diagnose`, prints the diagnosis and ends the
    process with status 0. Its weights are not to be used, since it has trained on one batch again and again.

    seconds: of the experiments. file: gets the verdict and all measurements as JSON; None: no file. The training loader
    must be a DataLoader of torch, or one that iterates over such a loader. Logs nothing. Raises ConfigError, also if
    the fit ends before its loop could be judged.
    """

    def __init__(self, *, seconds: float = 60.0, file: str | Path | None = None) -> None:
        check_seconds(seconds, "callbacks.diagnose.seconds")
        self.seconds, self.file = seconds, file
        self._hook: _OfTrainer | None = None
        self._undo: Callable[[], None] = lambda: None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._hook = _OfTrainer(trainer, self)
            self._undo = self._hook.patch(dataloader)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._hook is not None:
            self._hook.end("the fit ended before the experiments did")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._undo()  # Lightning tears no callback down when a fit ends in this way

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._undo()


class _OfTrainer(Hook):
    def __init__(self, trainer: Trainer, callback: Diagnose) -> None:
        super().__init__(callback.seconds)
        self.trainer, self.callback = trainer, callback

    def trains(self, loop: Any) -> bool:
        return bool(self.trainer.training)

    def end(self, reason: str) -> None:
        seconds = f"callbacks.diagnose.seconds={self.callback.seconds:g}"
        if self.examination is None:
            raise ConfigError(f"{seconds}: {reason}; expected a longer training loop over a DataLoader of torch")
        diagnosis = conclude(self.examination.measured, reason, ConfigError, f"{seconds}: ")
        print(diagnosis)
        if self.callback.file is not None:
            diagnosis.to_json(self.callback.file)
        raise SystemExit(0)
