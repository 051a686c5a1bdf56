"""Writes checkpoints: every N steps, every M minutes, after every epoch, at the end, and when a run is preempted."""

import logging
import math
import sys
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint as LightningCheckpoint

from imagenet_opt.errors import CheckpointError, ConfigError, Preempted
from imagenet_opt.model.rollback import of_all_ranks, random_state, set_random_state
from imagenet_opt.object_storage import FoundObject
from imagenet_opt.run.checkpoint import files
from imagenet_opt.run.checkpoint.mirror import check_url
from imagenet_opt.run.checkpoint.position import (
    between_batches,
    position,
    restore_loaders,
    restore_training_weights,
    rewrite_position,
    rewrite_to_validation,
    skip_to_training,
    watch_averaging,
)
from imagenet_opt.run.checkpoint.uploads import CheckpointUploads, check_writable
from imagenet_opt.run.checkpoint.writer import CheckpointWriter, HostCopy
from imagenet_opt.run.hook_timer import SAVE
from imagenet_opt.run.rows import is_logging_step, log_numbers
from imagenet_opt.run.stop.ranks import StopConsensus

log = logging.getLogger(__name__)

_LAST_WAIT_SECONDS = 30
_LAST_UPLOAD_SECONDS = 1200
_STOPPED_UPLOAD_SECONDS = 90  # of the two minutes between the notice and the end of a spot machine


class Checkpoint(LightningCheckpoint):
    """Keeps the newest `keep` checkpoints, `last.ckpt` (the newest) and `best.ckpt` (by `monitor`, larger is better).

    every_n_steps, every_minutes: a save is due after so many steps, or at the first logging step after so many minutes
    (the second with several processes); None for never. The state is also saved after each epoch and at the end of
    training.
    A thread writes the files to `folder` (default: the Trainer's default_root_dir). Training waits while the state is
    copied; at the end of an epoch and for the best weights, training also waits until the previous save is on the
    disk. A save that is due by steps or minutes is skipped while another save is being written. A failed save is a
    warning; if the last save of a run fails, CheckpointError is raised when training ends.
    mirror: s3://BUCKET/FOLDER or gs://BUCKET/FOLDER, to which another thread uploads each complete checkpoint; None for
    no mirror. The end of training waits for the last upload (at most 20 minutes; 90 s if a run is stopped or fails).
    While the mirror has a later checkpoint nothing is uploaded, except that those in the attribute `replaced` (empty
    unless it is set before the fit) are removed after the first upload.

    A save inside an epoch is made when the next batch begins, after the previous step has logged everything; a save at
    the end of an epoch is made after validation. When a callback or the loader raises Preempted, the state between two
    batches is saved; a resumed run first repeats an interrupted validation.
    A checkpoint has the random states of each process's CPU and GPU, and each process restores its own states; a
    process that the saved run did not have keeps its present states. A loader should have its own generator; otherwise
    starting the loader draws from the saved state, at a different moment in a resumed run. `state_dict` is a collective
    call: Lightning makes it in every process when it saves. The strategy must give each process the complete state, as
    a single device and DDP do.

    | key, at the logging step after a save | unit |
    |---|---|
    | `checkpoint/stall_seconds` | seconds for which the save stopped training |
    | `checkpoint/write_seconds` | seconds until the file was verified on the disk |
    | `checkpoint/mb` | size of the file in MB |
    | `checkpoint/upload_seconds` | seconds until the mirror had the file, at the logging step after an upload |
    """

    def __init__(
        self,
        *,
        folder: str | None = None,
        every_n_steps: int | None = None,
        every_minutes: float | None = 15.0,
        keep: int = 2,
        monitor: str = "val/acc1",
        mirror: str | None = None,
    ) -> None:
        if keep < 1:
            raise ConfigError(f"checkpoint.keep={keep} must be at least 1; best.ckpt and last.ckpt are always kept")
        for name, value in (("every_n_steps", every_n_steps), ("every_minutes", every_minutes)):
            if value is not None and not value > 0:
                raise ConfigError(f"checkpoint.{name}={value} must be above 0, or null for never")
        if mirror is not None:
            check_url(mirror)
        self.folder = None if folder is None else Path(folder)
        self.every_n_steps, self.every_minutes = every_n_steps, every_minutes
        self.keep, self.monitor, self.mirror = keep, monitor, mirror
        self.best, self.replaced = -math.inf, list[FoundObject]()
        self._random: dict[str, Any] | None = None
        self._rank = 0
        self._validates_first = False
        self._writer: CheckpointWriter | None = None
        self._uploads: CheckpointUploads | None = None

    @property
    def mirrored(self) -> str | None:
        """The mirror and the step that it has, for the summary; None without a mirror."""
        return None if self._uploads is None else self._uploads.state

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._rank = trainer.global_rank
        self.folder = Path(trainer.strategy.broadcast(str(self.folder or trainer.default_root_dir)))
        if stage == "fit":
            self._agree = StopConsensus()
        self._saved_step, self._saved_at, self._validated_step = -1, time.monotonic(), -1
        self._first_step = sys.maxsize  # nothing can be saved before training starts
        self._max_steps: int | None = None
        self._best_before = self.best
        self._row: dict[str, float] = {}
        self._writer = self._uploads = None
        watch_averaging(trainer)
        if self.mirror is not None and stage == "fit":
            check_writable(self.mirror, trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loop = trainer.fit_loop.epoch_loop
        if self._validates_first and trainer.enable_validation and loop.max_steps > 0:
            self._max_steps = loop.max_steps  # otherwise Lightning ends after the last step, before its validation
            loop.max_steps += 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert self.folder is not None
        restore_loaders(trainer)
        self._first_step = self._durable_step = trainer.global_step
        self._saved_step = -1 if self._validates_first else trainer.global_step
        if self._random is not None:
            self._resume(trainer, self._random)
            written_best = trainer.strategy.broadcast(self._best_of(self.folder / files.BEST))
            self.best = self._best_before = max(self.best, written_best)
        self._random, self._validates_first = None, False
        self._random_before = random_state()
        if trainer.is_global_zero:
            self._writer = CheckpointWriter(self.folder, keep=self.keep, then=self._upload)
            self._start_uploads(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_step > self._saved_step and self._due(trainer):
            self._save(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._random_before = random_state()
        if is_logging_step(trainer):
            self._collect()
            if self._row.keys() & {"checkpoint/write_seconds", "checkpoint/upload_seconds"}:
                log_numbers(trainer, self._row)
                self._row = {}

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._max_steps is not None and not trainer.sanity_checking:
            trainer.fit_loop.epoch_loop.max_steps, self._max_steps = self._max_steps, None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated_step = trainer.global_step

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step > self._saved_step:
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._is_durable(trainer):
            raise CheckpointError(f"training is complete, but {self._unsaved(trainer)}")
        self._finish_uploads(_LAST_UPLOAD_SECONDS)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._uploads is None and trainer.is_global_zero:  # nothing was left to train
            self._start_uploads(trainer)
            self._finish_uploads(_LAST_UPLOAD_SECONDS)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if not isinstance(exception, Preempted):
            self._settle(_LAST_WAIT_SECONDS)
        elif trainer.global_step > self._first_step and not self._is_durable(trainer):
            if between_batches(trainer):
                self._validates_first = trainer.validating
                restore_training_weights(trainer)
                self._save(trainer)
            if not self._is_durable(trainer) and trainer.is_global_zero:
                log.error(self._unsaved(trainer))
        self._finish_uploads(_STOPPED_UPLOAD_SECONDS)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._validates_first:
            rewrite_to_validation(checkpoint)
        else:
            rewrite_position(checkpoint, position(trainer))

    def state_dict(self) -> dict[str, Any]:
        random = self._random_before if self._validates_first else random_state()
        return {"best": self.best, "random": of_all_ranks(random), "validates_first": self._validates_first}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, states = state_dict["best"], state_dict["random"]
        self._validates_first = state_dict.get("validates_first", False)
        self._random = states[self._rank] if self._rank < len(states) else random_state()
        set_random_state(self._random, ["cpu"])  # not later, since the loader draws when it is set up

    def _resume(self, trainer: Trainer, random: dict[str, Any]) -> None:
        """Restore the loops and the random state of the checkpoint."""
        inside_epoch = position(trainer).step > 0
        # At the start of an epoch the loader has already drawn from the CPU's state, as in an undisturbed run.
        set_random_state(random, ["cpu", "cuda"] if inside_epoch or self._validates_first else ["cuda"])
        if self._validates_first:
            return
        if inside_epoch:
            skip_to_training(trainer)
        else:  # with max_steps Lightning would restart the previous epoch, and count a step that it does not take
            trainer.fit_loop.epoch_loop.restarting = False

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
        due = self._score(trainer) > self.best or ((by_steps or late) and not busy)
        return trainer.strategy.reduce_boolean_decision(due and trainer.is_global_zero, all=False)

    def _score(self, trainer: Trainer) -> float:
        """The monitored number of the present weights; nan if only earlier weights were validated."""
        current = trainer.global_step == self._validated_step
        return float(trainer.callback_metrics.get(self.monitor, math.nan)) if current else math.nan

    def _best_of(self, file: Path) -> float:
        """The best score stored in `file`, so that a resumed run does not replace better weights by worse weights."""
        try:
            return float(files.load(file)["callbacks"][self.state_key]["best"])
        except (CheckpointError, KeyError):
            return -math.inf

    def _save(self, trainer: Trainer) -> None:
        with trainer.profiler.profile(SAVE):  # type: ignore[attr-defined]  # Lightning's own saves have this action too
            began = time.perf_counter()
            self._settle()
            score = self._score(trainer)
            is_best = score > self.best
            if is_best:
                self._best_before, self.best = self.best, score
            state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
            self._saved_step, self._saved_at = trainer.global_step, time.monotonic()
            if self._writer is not None:
                snapshot = HostCopy(state)
                if snapshot.foreign:
                    raise CheckpointError(
                        f"no checkpoint with {', '.join(snapshot.foreign)} would open safely; "
                        "a callback's state_dict may hold numbers, strings, tensors, lists and dicts"
                    )
                self._writer.write(trainer.global_step, snapshot, is_best=is_best)
            self._row |= {"checkpoint/stall_seconds": time.perf_counter() - began}

    def _settle(self, timeout_seconds: float | None = None) -> None:
        """Wait until the running save has ended."""
        if self._writer is not None:
            self._writer.wait(timeout_seconds)
            self._collect()

    def _is_durable(self, trainer: Trainer) -> bool:
        """Whether the present step is on the disk. A collective call; rank 0 knows the answer."""
        self._settle()
        self._durable_step = trainer.strategy.broadcast(self._durable_step)
        return self._durable_step >= trainer.global_step

    def _collect(self) -> None:
        """Collect the results of the finished saves."""
        for written in self._writer.finished() if self._writer is not None else ():
            if written.error is None:
                self._durable_step = written.step
                self._row |= {"checkpoint/write_seconds": written.seconds, "checkpoint/mb": written.megabytes}
            elif written.is_best:
                self.best = self._best_before
        for uploaded in self._uploads.finished() if self._uploads is not None else ():
            if uploaded.error is None:
                self._row |= {"checkpoint/upload_seconds": uploaded.seconds}

    def _start_uploads(self, trainer: Trainer) -> None:
        """Upload first the checkpoint from which the run resumes, since the mirror may lack it."""
        if self.mirror is not None and self.folder is not None:
            self._uploads = CheckpointUploads(self.mirror, self.folder, keep=self.keep, replaced=self.replaced)
            self._uploads.add(trainer.global_step)

    def _upload(self, step: int) -> None:
        if self._uploads is not None:
            self._uploads.add(step)

    def _finish_uploads(self, seconds: float) -> None:
        if self._uploads is not None:
            self._uploads.finish(seconds)

    def _unsaved(self, trainer: Trainer) -> str:
        then = f"resumes from step {self._durable_step}" if self._durable_step else "starts anew, as no step is saved"
        return (
            f"step {trainer.global_step} is not saved: make room in {self.folder}/{files.FOLDER}, and run the same "
            f"command again; the run {then}"
        )
