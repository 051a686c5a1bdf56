"""A worker lives through what is sent to the whole process group, and ends when its parent wants."""

import subprocess
import tempfile
from collections.abc import Iterator
from multiprocessing import current_process
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from imagenet_opt.data.loader_workers import ignore_group_signals


def test_a_worker_outlives_the_groups_signals_and_obeys_its_parent() -> None:
    loader = DataLoader(
        range(100), batch_size=None, num_workers=1, prefetch_factor=1, worker_init_fn=ignore_group_signals
    )
    batches = iter(loader)
    first = next(batches)
    (worker,) = batches._workers
    for name in ("INT", "USR1", "TERM"):
        subprocess.run(["kill", f"-{name}", str(worker.pid)], check=True)
    assert [first, *batches] == list(range(100))

    batches = iter(loader)
    next(batches)
    (worker,) = batches._workers
    worker.terminate()
    worker.join(timeout=60)
    assert worker.exitcode == 0


@pytest.fixture
def temp_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where multiprocessing makes its folders, of which this process has none yet."""
    with tempfile.TemporaryDirectory(prefix="w") as folder:  # short, as names of sockets must be
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setitem(current_process()._config, "tempdir", None)
        yield Path(folder)


def end_a_worker(folder: Path) -> None:
    """A worker that has handed over a tensor's memory, for which it needs a folder."""
    samples = [torch.zeros(2)] * 100
    batches = iter(
        DataLoader(
            samples, batch_size=None, num_workers=1, worker_init_fn=ignore_group_signals, multiprocessing_context="fork"
        )
    )
    next(batches)
    assert list(folder.glob("pymp-*"))
    (worker,) = batches._workers
    worker.terminate()
    worker.join(timeout=60)


def test_one_that_is_ended_leaves_no_folder_behind(temp_dir: Path) -> None:
    end_a_worker(temp_dir)
    assert not list(temp_dir.iterdir())


def test_one_that_is_ended_leaves_its_parents_folder_alone(temp_dir: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="pymp-"))
    current_process()._config["tempdir"] = str(folder)  # as get_temp_dir does, which also removes it at the very end
    end_a_worker(temp_dir)
    assert folder.is_dir()
