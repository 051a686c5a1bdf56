"""A worker ignores signals to the process group, and ends at a SIGTERM of its parent."""

import logging
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from imagenet_opt.data.loader_workers import worker_options

starts_thread = threading.Event()
os.register_at_fork(
    after_in_child=lambda: (
        starts_thread.is_set() and threading.Thread(target=threading.Event().wait, daemon=True).start()
    )
)


def started(samples: Any, *, from_server: bool, **options: Any) -> DataLoader:
    """A loader with one worker: a fork of this process or of a server."""
    return DataLoader(samples, batch_size=None, num_workers=1, **options, **worker_options(is_remote=from_server))


@pytest.mark.parametrize("from_server", [False, True])
def test_a_worker_ignores_signals_of_the_group_and_obeys_its_parent(from_server: bool) -> None:
    loader = started(range(100), from_server=from_server, prefetch_factor=1)
    starts_thread.set()  # as libraries do that have threads
    batches = iter(loader)
    first = next(batches)
    starts_thread.clear()
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


class Environment(Dataset):
    """Logs a warning, and returns a variable of the environment."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int) -> str:
        logging.getLogger("worker").warning("slow storage")
        return os.environ["OF_THE_RUN"]


def test_a_worker_of_a_server_has_environment_and_log_file_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("first", "second"):  # the server was started with the first, or earlier
        monkeypatch.setenv("OF_THE_RUN", value)
        handler = logging.FileHandler(tmp_path / f"{value}.log")
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logging.getLogger().addHandler(handler)
        try:
            assert list(started(Environment(), from_server=True)) == [value]
        finally:
            logging.getLogger().removeHandler(handler)
            handler.close()
        assert (tmp_path / f"{value}.log").read_text() == "worker: slow storage\n"
