"""A worker ignores signals to the process group, and ends at a SIGTERM of its parent."""

import subprocess
import tempfile
from collections.abc import Iterator
from multiprocessing import current_process
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from imagenet_opt.data.loader_workers import ignore_group_signals


def test_a_worker_ignores_signals_of_the_group_and_obeys_its_parent() -> None:
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
    """The folder in which multiprocessing makes its folders; this process has none of them yet."""
    with tempfile.TemporaryDirectory(prefix="w") as folder:  # short, as names of sockets must be
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setitem(current_process()._config, "tempdir", None)
        yield Path(folder)


@pytest.mark.parametrize("inherited", [False, True])
def test_a_worker_removes_its_temporary_folder_and_not_that_of_its_parent(temp_dir: Path, inherited: bool) -> None:
    """The worker has handed over the memory of a tensor, for which it needs a folder."""
    folders = [Path(tempfile.mkdtemp(prefix="pymp-"))] if inherited else []
    for folder in folders:
        current_process()._config["tempdir"] = str(folder)  # as get_temp_dir does
    samples, fork = [torch.zeros(2)] * 100, {"num_workers": 1, "multiprocessing_context": "fork"}
    batches = iter(DataLoader(samples, batch_size=None, worker_init_fn=ignore_group_signals, **fork))
    next(batches)
    assert list(temp_dir.glob("pymp-*"))
    (worker,) = batches._workers
    worker.terminate()
    worker.join(timeout=60)
    assert list(temp_dir.iterdir()) == folders
