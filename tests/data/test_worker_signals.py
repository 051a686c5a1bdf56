"""A worker lives through what is sent to the whole process group, and ends when its parent wants."""

import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from imagenet_opt.data.worker_signals import shield


def test_a_worker_outlives_the_groups_signals_and_obeys_its_parent() -> None:
    loader = DataLoader(range(100), batch_size=None, num_workers=1, prefetch_factor=1, worker_init_fn=shield)
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


def test_one_that_is_ended_leaves_no_folder_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through which multiprocessing hands over a tensor's memory."""
    with tempfile.TemporaryDirectory(prefix="w") as folder:  # short, as names of sockets must be
        monkeypatch.setattr(tempfile, "tempdir", folder)
        samples = [torch.zeros(2)] * 100
        batches = iter(
            DataLoader(samples, batch_size=None, num_workers=1, worker_init_fn=shield, multiprocessing_context="fork")
        )
        next(batches)
        (worker,) = batches._workers
        assert list(Path(folder).glob("pymp-*"))
        worker.terminate()
        worker.join(timeout=60)
        assert not list(Path(folder).iterdir())
