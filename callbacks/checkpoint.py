"""Writes checkpoints: every N steps, every M minutes, after every epoch, at the end, and when a run is preempted."""

import logging
import math
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint as LightningCheckpoint

from imagenet_opt import private_api
from imagenet_opt.errors import CheckpointError, ConfigError, Preempted
from imagenet_opt.model.rollback import of_all_ranks, random_state, set_random_state
from imagenet_opt.object_storage import FoundObject
from imagenet_opt.run.checkpoint import files, names, position
from imagenet_opt.run.checkpoint.uploads import CheckpointUploads, check_writable
from imagenet_opt.run.checkpoint.writer import CheckpointWriter, HostCopy
from imagenet_opt.run.hook_timer import SAVE
from imagenet_opt.run.numbers import BEST_EPOCH, mode_of
from imagenet_opt.run.stop.ranks import StopConsensus

log = logging.getLogger(__name__)

_LAST_WAIT_SECONDS = 30
_LAST_UPLOAD_SECONDS = 1200
_STOPPED_UPLOAD_SECONDS = 90  # of the two minutes between the notice and the end of a spot machine


class BestScore(NamedTuple):
    """score: of `monitor`, larger is better; with mode "min" its negative. epoch: from 1; 0 if unknown."""

    score: float
    epoch: int = 0


_NONE = BestScore(-math.inf)
_BEFORE = {"sign": 1, "limit_val_batches": "1.0"}
"""What scores of checkpoints without `scored_with` can be compared with: the largest metric was the best, and a limited
validation had the first classes only."""


class Checkpoint(LightningCheckpoint):
    """Keeps the newest `keep` checkpoints, `last.ckpt` (the newest) and `best.ckpt` (by `monitor`).

    folder: default the Trainer's default_root_dir. every_n_steps, every_minutes: a save is due after so many steps, or
    at the first logging step after so many minutes (the second with several processes); None for never. The state is
    also saved after each epoch, at the end of training, and when a callback or the loader raises Preempted.
    monitor: a metric of validations; ConfigError at the end of an epoch whose validation logs only others. mode: "max"
    or "min", whether larger or smaller is better; None: smaller for a loss.
    mirror: s3://BUCKET/FOLDER or gs://BUCKET/FOLDER, to which each complete checkpoint is uploaded; None for no mirror.
    The end of training waits for the last upload (at most 20 minutes; 90 s if a run is stopped or fails). Later
    checkpoints in the mirror are left alone and nothing is uploaded, unless the attribute `replaced` names them.
    scored_with, an attribute: plain values on which scores depend; the best score with other values is forgotten.

    Training waits while the state is copied, and a thread writes the copy; a save that is due by steps or minutes while
    the thread writes is skipped. A failed save is a warning; if the last save of a run fails, CheckpointError is raised
    when training ends. A save inside an epoch is made when the next batch begins, a save at its end after validation. A
    resumed run first repeats an interrupted validation.
    A checkpoint has the random states of each process's CPU and GPU. A loader should have its own generator; otherwise
    starting the loader draws from the saved state, at a different moment in a resumed run. The strategy must give each
    process the complete state, as a single device and DDP do.

    Logs no metric; a line for each save and upload says how long it took.
    """

    def __init__(
        self,
        *,
        folder: str | None = None,
        every_n_steps: int | None = None,
        every_minutes: float | None = 15.0,
        keep: int = 2,
        monitor: str = "val/acc1",
        mode: Literal["max", "min"] | None = None,
        mirror: str | None = None,
    ) -> None:
        for name, value in (("keep", keep), ("every_n_steps", every_n_steps), ("every_minutes", every_minutes)):
            if value is not None and not value > 0:
                raise ConfigError(f"callbacks.checkpoint.{name}={value} must be above 0")
        self.folder = Path(folder) if folder is not None else None
        self.every_n_steps, self.every_minutes = every_n_steps, every_minutes
        self.keep, self.monitor, self.mirror = keep, monitor, mirror
        self._sign = -1 if (mode or mode_of(monitor)) == "min" else 1
        self.best, self.replaced = _NONE, list[FoundObject]()
        self.scored_with: dict[str, Any] = {}
        self._validation: dict[str, float] = {}  # of the present weights
        self._random: dict[str, Any] | None = None
        self._rank, self._validates_first = 0, False
        self._first_step = math.inf  # nothing can be saved before training starts
        self._writer: CheckpointWriter | None = None
        self._uploads = CheckpointUploads(None, Path(), keep=keep)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._rank = trainer.global_rank
        self.folder = Path(trainer.strategy.broadcast(str(self.folder or trainer.default_root_dir)))
        self._saved_step, self._saved_at, self._validated_step = -1, time.monotonic(), -1
        self._first_step = math.inf
        self._best_before, self._more_steps = self.best, 0
        self._writer = None
        position.watch_averaging(trainer)
        if stage == "fit":
            self._agree = StopConsensus()
            if self.mirror is not None:
                check_writable(self.mirror, trainer)
            url = self.mirror if trainer.is_global_zero else None
            self._uploads = CheckpointUploads(url, self.folder, keep=self.keep, replaced=self.replaced)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._validates_first and trainer.enable_validation and trainer.max_steps > 0:
            self._more_steps = 1  # otherwise Lightning ends after the last step, before its validation
            trainer.fit_loop.epoch_loop.max_steps += 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert self.folder is not None
        private_api.restore_late_loaders(trainer)
        self._first_step = trainer.global_step
        self._saved_step = -1 if self._validates_first else trainer.global_step
        if self._random is not None:
            inside_epoch = position.position(trainer).step > 0
            # At the start of an epoch the loader has already drawn from the CPU's state, as in an undisturbed run.
            set_random_state(self._random, ["cpu", "cuda"] if inside_epoch or self._validates_first else ["cuda"])
            if not self._validates_first:
                position.skip_to_training(trainer, inside_epoch=inside_epoch)
            best = trainer.strategy.broadcast(self._best_of(self.folder / names.BEST))
            self.best = self._best_before = max(self.best, best)
        self._random, self._validates_first = None, False
        self._random_before = random_state()
        if trainer.is_global_zero:
            self._writer = CheckpointWriter(self.folder, keep=self.keep, then=self._uploads.add)
            self._uploads.add(trainer.global_step)  # the mirror may lack the checkpoint from which the run resumes

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_step > self._saved_step and self._due(trainer):
            self._save(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._random_before, self._validation = random_state(), {}
        self._collect()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            trainer.fit_loop.epoch_loop.max_steps -= self._more_steps
            self._more_steps = 0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated_step = trainer.global_step
        logged = trainer.callback_metrics
        self._validation = {name: float(logged[name]) for name in logged if name.startswith("val")}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step > self._saved_step:
            self._save(trainer)
        if self._validation and self.monitor not in trainer.callback_metrics:
            raise ConfigError(
                f"callbacks.checkpoint.monitor={self.monitor} is not logged, so there is no best.ckpt; choose one of "
                f"{', '.join(self._validation)}, and run the same command again; the run resumes"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if problem := self._unsaved(trainer):
            raise CheckpointError(f"training is complete, but {problem}")
        self._uploads.finish(_LAST_UPLOAD_SECONDS)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._writer is None:  # nothing was left to train
            self._uploads.add(trainer.global_step)
            self._uploads.finish(_LAST_UPLOAD_SECONDS)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if not isinstance(exception, Preempted):
            self._settle(_LAST_WAIT_SECONDS)
        elif trainer.global_step > self._first_step and self._unsaved(trainer):
            if position.between_batches(trainer):
                self._validates_first = trainer.validating
                position.restore_training_weights(trainer)
                self._save(trainer)
            if (problem := self._unsaved(trainer)) and trainer.is_global_zero:
                log.error(problem)
        self._uploads.finish(_STOPPED_UPLOAD_SECONDS)

    def summary(self) -> dict[str, float]:
        """The validation of the last weights, and the best score and its epoch."""
        score, epoch = self.best
        best = {f"best/{self.monitor}": self._sign * score, BEST_EPOCH: epoch} if self.best != _NONE else {}
        return self._validation | best

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._validates_first:
            position.rewrite_to_validation(checkpoint)
        else:
            position.rewrite_position(checkpoint, position.position(trainer))

    def state_dict(self) -> dict[str, Any]:
        random = self._random_before if self._validates_first else random_state()
        return {
            "best": self.best.score,
            "best_epoch": self.best.epoch,
            "scored_with": self._scored_with(),
            "validation": self._validation,
            "random": of_all_ranks(random),
            "validates_first": self._validates_first,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, states = self._best_in(state_dict), state_dict["random"]
        if self.best.score < state_dict["best"] and self._rank == 0:
            log.info(f"best.ckpt was not chosen by this {self.monitor}: the next validated weights replace it")
        self._validation = state_dict.get("validation", {})
        self._validates_first = state_dict.get("validates_first", False)
        self._random = states[self._rank] if self._rank < len(states) else random_state()
        set_random_state(self._random, ["cpu"])  # not later, since the loader draws when it is set up

    def _due(self, trainer: Trainer) -> bool:
        """Whether a save is due. Rank 0 decides, since it writes; all processes call this at the same steps."""
        step, every = trainer.global_step, trainer.log_every_n_steps or 1  # type: ignore[attr-defined]
        by_steps = bool(self.every_n_steps) and step % (self.every_n_steps or 1) == 0
        late = all_late = False
        if self.every_minutes and step % every == 0:
            late = trainer.is_global_zero and time.monotonic() - self._saved_at >= self.every_minutes * 60
            all_late = bool(self._agree(late))  # of several processes: at the next logging step
        if not (by_steps or all_late or step == self._validated_step):
            return False
        busy = self._writer is not None and self._writer.busy
        due = self._score(trainer) > self.best.score or ((by_steps or late) and not busy)
        return trainer.strategy.reduce_boolean_decision(due and trainer.is_global_zero, all=False)

    def _score(self, trainer: Trainer) -> float:
        """The monitored number of the present weights; nan if only earlier weights were validated."""
        current = trainer.global_step == self._validated_step
        return self._sign * float(trainer.callback_metrics.get(self.monitor, math.nan)) if current else math.nan

    def _best_of(self, file: Path) -> BestScore:
        """The best score in `file`, so that a resumed run does not replace better weights by worse weights."""
        try:
            return self._best_in(files.load(file)["callbacks"][self.state_key])
        except (CheckpointError, KeyError):
            return _NONE

    def _best_in(self, state: dict[str, Any]) -> BestScore:
        """The best score in a saved state; none if it cannot be compared with the scores of this run."""
        present = self._scored_with()
        before = state.get("scored_with", present | {key: _BEFORE[key] for key in _BEFORE.keys() & present.keys()})
        return BestScore(state["best"], state.get("best_epoch", 0)) if before == present else _NONE

    def _scored_with(self) -> dict[str, Any]:
        return {"monitor": self.monitor, "sign": self._sign} | self.scored_with

    def _save(self, trainer: Trainer) -> None:
        with trainer.profiler.profile(SAVE):  # type: ignore[attr-defined]  # Lightning's own saves have this action too
            self._settle()
            if is_best := (score := self._score(trainer)) > self.best.score:
                place = position.position(trainer)
                self._best_before, self.best = self.best, BestScore(score, place.epoch + (place.step > 0))
            state = private_api.state_of_fit(trainer)
            self._saved_step, self._saved_at = trainer.global_step, time.monotonic()
            if self._writer is not None:
                self._writer.write(trainer.global_step, HostCopy(state), is_best=is_best)

    def _settle(self, timeout_seconds: float | None = None) -> None:
        """Wait until the running save has ended."""
        if self._writer is not None:
            self._writer.wait(timeout_seconds)
            self._collect()

    def _unsaved(self, trainer: Trainer) -> str | None:
        """An error if the present step is not on the disk. A collective call; rank 0 knows the answer."""
        self._settle()
        written_step = -1 if self._writer is None else self._writer.written_step
        durable_step = trainer.strategy.broadcast(max(self._first_step, written_step))
        if durable_step >= trainer.global_step:
            return None
        return (
            f"step {trainer.global_step} is not saved: make room in {self.folder}/{names.FOLDER}, and run the same "
            f"command again; the run resumes from step {durable_step}"
        )

    def _collect(self) -> None:
        """Take back the best score if its save has failed."""
        if self._writer is not None and self._writer.lost_best:
            self._writer.lost_best, self.best = False, self._best_before
