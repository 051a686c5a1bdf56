"""The data module in a Trainer: batches, and the end of a fit when a worker is killed or storage hangs."""

import multiprocessing
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback

from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.callbacks.preemption import Preemption
from imagenet_opt.data.batch import Batch
from imagenet_opt.data.batch_keys import BatchKey
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.data.dataset import BatchDataset
from imagenet_opt.data.loader_workers import explain_worker_death
from imagenet_opt.errors import Preempted, WorkerDied
from imagenet_opt.run.checkpoint.position import position, rewrite_position
from tests.conftest import quiet_trainer
from tests.data.conftest import end_of
from tests.data.fits import fit

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


@pytest.fixture
def sigchld(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch installs its SIGCHLD handler again. torch installs it once, and Lightning removes it after each fit."""
    monkeypatch.setattr("torch.utils.data._utils.signal_handling._SIGCHLD_handler_set", False)


@pytest.mark.parametrize("stage", ["training", "validation"])
def test_a_killed_worker_is_explained(data: Callable[..., ImageData], stage: str, sigchld: None) -> None:
    """The worker of the other loader is killed in the second epoch of training, or in validation."""

    def kill(loader: Any) -> None:
        os.kill(loader.loader._iterator._workers[0].pid, signal.SIGKILL)

    def in_training(trainer: Trainer, _: Any, batch: Batch, *__: int) -> None:
        if stage == "training" and batch.key[:2] == (1, 1):
            kill(trainer.val_dataloaders)

    def in_validation(trainer: Trainer, _: Any, __: Batch, batch_idx: int, *___: int) -> None:
        if stage == "validation" and trainer.global_step and batch_idx == 1:
            kill(trainer.train_dataloader)

    killing = LambdaCallback(on_train_batch_start=in_training, on_validation_batch_start=in_validation)

    def run() -> None:
        try:
            fit(data(num_workers=1), killing, max_epochs=100_000)
        except (RuntimeError, WorkerDied) as reason:  # torch's signal handler may raise anywhere; all frames are alive
            error = reason if isinstance(reason, WorkerDied) else explain_worker_death(reason)
            raise LookupError(str(error), [child.pid for child in multiprocessing.active_children()]) from reason

    text, left = end_of(run).args
    assert re.match(r"a loader process was killed.*; lower data\.num_workers", text) and left == []


@pytest.mark.parametrize(("how", "error"), [("stop", Preempted), ("error", ArithmeticError)])
def test_storage_that_hangs_does_not_delay_the_end_of_a_fit(
    data: Callable[..., ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, error: type[Exception]
) -> None:
    """From the second batch on; the fit ends after one step. Each waiting worker writes a byte into a pipe."""
    make, (here, there), never = BatchDataset.__getitem__, os.pipe(), multiprocessing.get_context("fork").Event()

    def late(dataset: BatchDataset, key: BatchKey) -> Any:
        if key.step > 0:
            os.write(there, b".")
            never.wait()
        return make(dataset, key)

    def leave(*_: Any) -> None:
        os.read(here, 1)
        if how == "error":
            raise ArithmeticError("a mistake")
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(BatchDataset, "__getitem__", late)
    callbacks = LambdaCallback(on_train_batch_end=leave), Preemption(), Checkpoint(folder=str(tmp_path))
    options = {"limit_val_batches": 0, "enable_checkpointing": True}
    with pytest.raises(error):  # keeps all frames alive, so that no garbage collection ends anything
        fit(data(num_workers=1), *callbacks, **options)
    assert not multiprocessing.active_children()
    assert (tmp_path / "last.ckpt").exists() == (how == "stop")
    os.close(here)
    os.close(there)


def test_a_second_fit_of_resumed_data_starts_at_the_beginning(data: Callable[..., ImageData], tmp_path: Path) -> None:
    saved = tmp_path / "one.ckpt"
    saving = LambdaCallback(
        on_train_batch_start=lambda trainer, *_: trainer.global_step == 4 and trainer.save_checkpoint(saved),
        on_save_checkpoint=lambda trainer, _, checkpoint: rewrite_position(checkpoint, position(trainer)),
    )
    fit(data(), saving, max_steps=5)
    resumed = data()
    assert [key[:2] for key in fit(resumed, resume=saved, max_steps=6).trained] == [(0, 4), (0, 5)]
    assert [key[:2] for key in fit(resumed, max_steps=2).trained] == [(0, 0), (0, 1)]


@pytest.mark.parametrize(("limit", "labels"), [(1, {0, 1, 2}), (0.4, {0, 1, 2}), (1.0, {0})])
def test_a_limited_validation_has_all_classes(data: Callable[..., ImageData], limit: float, labels: set[int]) -> None:
    made = data(batch_size=6)
    made.trainer = quiet_trainer(limit_val_batches=limit)
    assert {*next(iter(made.val_dataloader())).labels.tolist()} == labels


def test_epochs_that_end_early_have_the_first_batches_of_each(data: Callable[..., ImageData]) -> None:
    trained = fit(data(num_workers=2), limit_train_batches=2).trained
    assert [key[:2] for key in trained] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
