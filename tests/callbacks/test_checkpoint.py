"""Which checkpoint files exist, and that a run resumes from these files."""

import errno
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback

from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.callbacks.early_stop import EarlyStop
from imagenet_opt.errors import CheckpointError, ConfigError
from imagenet_opt.run.checkpoint.writer import wait_for_writers
from tests.callbacks.conftest import Stream, opened


def steps(folder: Path) -> list[int]:
    return [int(file.stem.split("_")[1]) for file in sorted((folder / "checkpoints").iterdir())]


def step_of(file: Path) -> int:
    return opened(file)["global_step"]


class Unhurried(Callback):
    """No step begins before the last checkpoint is on the disk and in the mirror; a save that is due while another is
    written would be left out."""

    def on_train_batch_end(self, *_: Any) -> None:
        wait_for_writers(60)
        for thread in threading.enumerate():  # the writer starts it
            if thread.name == "checkpoint upload":
                thread.join()


def test_the_newest_are_kept_and_last_is_the_newest(project, tmp_path: Path) -> None:
    project.fit(Checkpoint(folder=str(tmp_path), every_n_steps=4, keep=3), Unhurried())
    assert steps(tmp_path) == [12, 16, 20]
    assert step_of(tmp_path / "last.ckpt") == 20


def score_epochs(*scores: float, metric: str = "val/acc1") -> Callback:
    """Log the score of each epoch."""
    score = Callback()
    score.on_validation_epoch_end = lambda trainer, module: module.log(metric, scores[trainer.current_epoch])
    return score


@pytest.mark.parametrize(
    ("metric", "scores"),
    [("val/acc1", (0.2, 0.6, 0.5)), ("val/acc1", (math.nan, 0.4, math.nan)), ("val/loss", (3, 1, 2))],
)
def test_best_is_replaced_by_better_only(project, tmp_path: Path, metric: str, scores: tuple[float, ...]) -> None:
    checkpoint = Checkpoint(folder=str(tmp_path), monitor=metric)
    project.fit(score_epochs(*scores, metric=metric), checkpoint, max_epochs=3)
    assert step_of(tmp_path / "best.ckpt") == 20
    assert step_of(tmp_path / "last.ckpt") == 30
    assert checkpoint.summary().items() >= {f"best/{metric}": pytest.approx(scores[1]), "best/epoch": 2}.items()


def test_a_metric_that_is_not_logged_ends_the_fit_after_a_save(project, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"callbacks\.checkpoint\.monitor=val/acc .*val/acc1"):
        project.fit(score_epochs(0.5, 0.5), Checkpoint(folder=str(tmp_path), monitor="val/acc"))
    assert step_of(tmp_path / "last.ckpt") == 10
    with pytest.raises(ConfigError, match=r"callbacks\.early_stop\.monitor=val/acc .*val/acc1"):
        project.fit(score_epochs(0.5, 0.5), EarlyStop("val/acc"))


@pytest.mark.parametrize("best", [10, 15])
def test_the_best_weights_are_those_that_were_validated(project, tmp_path: Path, best: int) -> None:
    """Two validations in each epoch of ten steps."""
    score = Callback()
    score.on_validation_epoch_end = lambda trainer, module: module.log("val/acc1", float(trainer.global_step == best))
    project.fit(score, Checkpoint(folder=str(tmp_path)), max_epochs=2, val_check_interval=5)
    assert step_of(tmp_path / "best.ckpt") == best


def test_a_loader_without_a_length_is_fine(project, tmp_path: Path) -> None:
    project.fit(Checkpoint(folder=str(tmp_path)), data=Stream(), max_epochs=2)
    project.fit(Checkpoint(folder=str(tmp_path)), data=Stream(), max_epochs=3, ckpt_path=tmp_path / "last.ckpt")
    assert (project.trainer.current_epoch, project.trainer.global_step) == (3, 30)


@pytest.mark.parametrize(("way", "best"), [({}, 20), ({"limit_val_batches": "2"}, 30)])
def test_the_best_is_not_replaced_by_a_worse_one_that_was_validated_in_the_same_way(
    way: dict[str, Any], best: int, project, tmp_path: Path
) -> None:
    """Nor by a run that goes back; the way of the first run is {}."""
    folder = str(tmp_path)
    project.fit(score_epochs(0.2, 0.9), Checkpoint(folder=folder), max_epochs=2)
    resumed: Path = tmp_path / "checkpoints/step_00000010.ckpt"
    for epochs in (2, 3):
        checkpoint = Checkpoint(folder=folder)
        checkpoint.scored_with = way
        project.fit(score_epochs(0.0, 0.5, 0.6), checkpoint, max_epochs=epochs, ckpt_path=resumed)
        resumed = tmp_path / "last.ckpt"
    assert (step_of(tmp_path / "last.ckpt"), step_of(tmp_path / "best.ckpt")) == (30, best)


class BrokenDisk(Unhurried):
    """Nothing can be made durable in the epochs given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, epochs: set[int]) -> None:
        self.monkeypatch, self.epochs = monkeypatch, epochs

    def on_train_epoch_start(self, trainer, pl_module) -> None:
        self.on_train_batch_end()
        self.monkeypatch.undo()
        if trainer.current_epoch in self.epochs:
            self.monkeypatch.setattr(os, "fsync", self.fail)

    def fail(self, *_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_ends_no_training_and_the_next_better_weights_are_the_best(
    project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The weights of step 25, which nobody validated, are not."""
    checkpoint = Checkpoint(folder=str(tmp_path), keep=1, every_n_steps=25)
    project.fit(score_epochs(0.2, 0.9, 0.5, 0.4), checkpoint, BrokenDisk(monkeypatch, {1}), max_epochs=4)
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "step 20" in warning and os.strerror(errno.ENOSPC) in warning
    assert (step_of(tmp_path / "last.ckpt"), step_of(tmp_path / "best.ckpt")) == (40, 30)


def test_a_run_whose_last_checkpoint_is_missing_says_so(
    project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epochs, step in (({0, 1}, 0), ({1}, 10)):
        with pytest.raises(CheckpointError, match=rf"step 20 .*{tmp_path}.* step {step}$"):
            project.fit(Checkpoint(folder=str(tmp_path)), BrokenDisk(monkeypatch, epochs))
    assert step_of(tmp_path / "last.ckpt") == 10


def test_a_run_that_stopped_early_trains_on_only_with_another_threshold_or_patience(project, tmp_path: Path) -> None:
    """Ten steps an epoch."""
    scores, resumed = (0.2, 0.6, 0.6, 0.6, 0.9), None
    for threshold, patience, step in ((0.5, None, 20), (0.5, None, 20), (None, 1, 40), (None, 1, 40), (None, 2, 50)):
        stop = EarlyStop("val/acc1", mode="max", stopping_threshold=threshold, patience=patience)
        callbacks = score_epochs(*scores), stop, Checkpoint(folder=str(tmp_path))
        project.fit(*callbacks, max_epochs=5, ckpt_path=resumed)
        assert project.trainer.global_step == step
        resumed = tmp_path / "last.ckpt"
