"""The end of a fit when a worker is killed or storage hangs."""

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.callbacks.preemption import Preemption
from imagenet_opt.data.batch import Batch
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.data.dataset import BatchDataset
from imagenet_opt.data.keys import BatchKey
from imagenet_opt.data.loader_workers import explain_worker_death
from imagenet_opt.errors import Preempted, WorkerDied
from tests.data.conftest import end_of
from tests.data.fits import Recorder, fit

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


class Killer(Recorder):
    """Kills a worker of one loader while the run is in one of its stages."""

    def __init__(self, stage: str, loader: str) -> None:
        super().__init__()
        self.stage, self.loader = stage, loader

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        if self.stage == "training" and batch.key[:2] == (1, 1):
            self.kill()
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if self.stage == "validation" and self.trainer.global_step and batch_idx == 1:
            self.kill()

    def kill(self) -> None:
        loader = self.trainer.train_dataloader if self.loader == "train" else self.trainer.val_dataloaders
        os.kill(loader.loader._iterator._workers[0].pid, signal.SIGKILL)


@pytest.fixture
def sigchld(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch installs its SIGCHLD handler again. torch installs it once, and Lightning removes it after each fit."""
    monkeypatch.setattr("torch.utils.data._utils.signal_handling._SIGCHLD_handler_set", False)


@pytest.mark.parametrize(("stage", "loader"), [("training", "val"), ("validation", "train")])
def test_a_killed_worker_is_explained_in_training_and_in_validation(
    data: Callable[..., ImageData], stage: str, loader: str, sigchld: None
) -> None:
    def run() -> None:
        try:
            fit(data(num_workers=1), module=Killer(stage, loader), max_epochs=100_000)
        except (RuntimeError, WorkerDied) as reason:  # torch's signal handler may raise anywhere; all frames are alive
            error = reason if isinstance(reason, WorkerDied) else explain_worker_death(reason)
            raise LookupError(str(error), [child.pid for child in multiprocessing.active_children()]) from reason

    text, left = end_of(run).args
    assert re.match(r"a loader process was killed.*; lower data\.num_workers", text) and left == []


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Any]]:
    """From the second batch of an epoch on, storage hangs until the event is set. Each waiting worker writes a byte
    into the pipe."""
    make, (here, there) = BatchDataset.__getitem__, os.pipe()
    answer = multiprocessing.get_context("fork").Event()

    def late(dataset: BatchDataset, key: BatchKey) -> Any:
        if key.step > 0:
            os.write(there, b".")
            answer.wait()
        return make(dataset, key)

    monkeypatch.setattr(BatchDataset, "__getitem__", late)
    give_up = threading.Timer(60, answer.set)
    give_up.start()
    yield here, answer
    give_up.cancel()
    os.close(here)
    os.close(there)


class Leaving(Recorder):
    """A fit that ends after one step, while a worker waits for storage."""

    def __init__(self, pipe: int, how: str) -> None:
        super().__init__()
        self.pipe, self.how = pipe, how

    def on_train_batch_end(self, *_: Any) -> None:
        os.read(self.pipe, 1)
        if self.how == "stop":
            signal.raise_signal(signal.SIGUSR1)
        elif self.how == "error":
            raise ArithmeticError("a mistake")


@pytest.mark.parametrize(("how", "error"), [("stop", Preempted), ("error", ArithmeticError)])
def test_storage_that_hangs_does_not_delay_the_end_of_a_fit(
    data: Callable[..., ImageData], hanging: tuple[int, Any], tmp_path: Path, how: str, error: type[Exception]
) -> None:
    pipe, answer = hanging
    saving = Checkpoint(folder=str(tmp_path))
    options = {"limit_val_batches": 0, "enable_checkpointing": True}
    with pytest.raises(error):  # keeps all frames alive, so that no garbage collection ends anything
        fit(data(num_workers=1), Preemption(), saving, module=Leaving(pipe, how), **options)
    assert not answer.is_set()
    assert not multiprocessing.active_children()
    assert (tmp_path / "last.ckpt").exists() == (how != "error")
