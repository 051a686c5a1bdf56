"""Writes checkpoints: every N steps, every M minutes, after every epoch, at the end."""

import logging
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint as LightningCheckpoint

from imagenet_opt.errors import ConfigError, Preempted
from imagenet_opt.run import checkpoint as files
from imagenet_opt.run.position import position, rewrite_position, validation_due

log = logging.getLogger(__name__)


class Checkpoint(LightningCheckpoint):
    """Keeps the newest `keep` checkpoints, `last.ckpt` (the newest) and `best.ckpt` (by `monitor`, larger is better).

    Files go to `folder` (default: the Trainer's default_root_dir). A checkpoint inside an epoch is written as the
    next batch begins, when all that belongs to the step before is logged; one at the end of an epoch after validation.
    The random state of the CPU and of the GPU is in it; a loader should have a generator of its own, since starting it
    else draws from that state, at another moment in a resumed run.

    Logs nothing.
    """

    def __init__(
        self,
        *,
        folder: str | None = None,
        every_n_steps: int | None = None,
        every_minutes: float | None = None,
        keep: int = 2,
        monitor: str = "val/acc1",
    ) -> None:
        if keep < 1:
            raise ConfigError(f"checkpoint.keep={keep} must be at least 1; best.ckpt and last.ckpt are kept besides")
        self.folder = None if folder is None else Path(folder)
        self.every_n_steps = every_n_steps
        self.every_minutes = every_minutes
        self.keep = keep
        self.monitor = monitor
        self.best = -math.inf
        self._random: dict[str, Any] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.folder = Path(trainer.strategy.broadcast(str(self.folder or trainer.default_root_dir)))
        self._saved_step, self._saved_at, self._validated_step = -1, time.monotonic(), -1
        self._first_step = sys.maxsize  # nothing can be saved before training starts

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._first_step = trainer.global_step
        self._saved_step = -1 if validation_due(trainer) else trainer.global_step
        if self._random is not None:
            if position(trainer).step > 0:  # else the loader has drawn for its epoch, as it should, since the restore
                torch.set_rng_state(self._random["cpu"].cpu())
            else:  # with max_steps Lightning would restart the epoch before, and count a step that it does not take
                trainer.fit_loop.epoch_loop.restarting = False
            if self._random["cuda"] is not None and torch.cuda.is_initialized():
                torch.cuda.set_rng_state(self._random["cuda"].cpu())
            self._random = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_step > self._saved_step and self._due(trainer):
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated_step = trainer.global_step

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step > self._saved_step:
            self._save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, Preempted) and trainer.global_step > max(self._saved_step, self._first_step):
            self._save(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        rewrite_position(checkpoint, position(trainer), validation_due(trainer))

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "random": _random_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self._random = state_dict["best"], state_dict["random"]
        torch.set_rng_state(state_dict["random"]["cpu"].cpu())  # already here: the loader draws when it is set up

    def _due(self, trainer: Trainer) -> bool:
        if self.every_n_steps and trainer.global_step % self.every_n_steps == 0:
            return True
        if self._score(trainer) > self.best:
            return True
        every = trainer.log_every_n_steps or 1  # type: ignore[attr-defined]
        if not self.every_minutes or trainer.global_step % every:
            return False
        late = time.monotonic() - self._saved_at >= self.every_minutes * 60
        return bool(trainer.strategy.reduce_boolean_decision(late, all=False))

    def _score(self, trainer: Trainer) -> float:
        """The monitored number of the weights as they are now; nan when it is of earlier ones."""
        current = trainer.global_step == self._validated_step
        return float(trainer.callback_metrics.get(self.monitor, math.nan)) if current else math.nan

    def _save(self, trainer: Trainer) -> None:
        assert self.folder is not None
        path = files.step_file(self.folder, trainer.global_step)
        score = self._score(trainer)
        is_best = score > self.best
        if is_best:
            self.best = score
        fresh = path.with_suffix(".new")
        trainer.save_checkpoint(fresh)
        self._saved_step, self._saved_at = trainer.global_step, time.monotonic()
        if not trainer.is_global_zero:
            return
        os.replace(fresh, path)
        files.link(path, self.folder / files.LAST)
        if is_best:
            files.link(path, self.folder / files.BEST)
        for old in files.step_files(self.folder)[: -self.keep]:
            old.unlink()


def _random_state() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}
