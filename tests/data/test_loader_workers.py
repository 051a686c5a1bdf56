"""Workers: signals, environment, memory and open files."""

import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from torch.utils.data import DataLoader, Dataset

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.loader import RankInfo, train_loader
from imagenet_opt.data.loader_workers import worker_options
from imagenet_opt.data.prefetcher import DevicePrefetcher
from tests.data.conftest import CPU, MakeLoader, batches, loading

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
    made = started(range(100), from_server=from_server, prefetch_factor=1)
    starts_thread.set()  # as libraries do that have threads
    iterator = iter(made)
    first = next(iterator)
    starts_thread.clear()
    (worker,) = iterator._workers
    for name in ("INT", "USR1", "TERM"):
        subprocess.run(["kill", f"-{name}", str(worker.pid)], check=True)
    assert [first, *iterator] == list(range(100))

    iterator = iter(made)
    next(iterator)
    (worker,) = iterator._workers
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


def test_a_worker_of_a_server_has_environment_and_log_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def workers_of(made: DevicePrefetcher) -> list[psutil.Process]:
    assert isinstance(made.loader, DataLoader)
    return [psutil.Process(worker.pid) for worker in made.loader._iterator._workers]


def test_memory_and_open_files_do_not_grow(images_root: Path, loader: MakeLoader) -> None:
    """Six epochs that kept their batches would add 130 MB, or 36 open files."""
    made = loader(images_root, num_workers=1, resize_on="device", image_size=224)

    def used() -> Iterator[float]:
        for process in (*workers_of(made), psutil.Process()):
            status = Path(f"/proc/{process.pid}/status").read_text()  # memory shared by a fork counts too
            yield int(status.partition("RssAnon:")[2].split()[0]) / 1e3  # without files and shared memory
            yield process.num_fds()
            yield process.num_threads()

    for epoch in range(2):
        batches(made, epoch=epoch)
    before = list(used())
    for epoch in range(2, 8):
        batches(made, epoch=epoch)
    grown = [now - then for now, then in zip(used(), before, strict=True)]
    assert max(grown[0], grown[3]) < 60, "MB"
    assert max(grown[1], grown[4]) < 15, "open files"
    assert max(grown[2], grown[5]) < 15, "threads"


def test_an_index_of_imagenets_size_costs_workers_nothing(images_root: Path, tmp_path: Path) -> None:
    """Against the same loader of 39 samples. As a list of paths and labels it would be over 200 MB a worker."""
    num = 1_281_167
    few = open_index(images_root, "train", tmp_path / "cache")
    name = np.frombuffer(os.fsencode(os.path.relpath(few.path(0), few.folder)), np.uint8)
    columns = {
        "labels": np.zeros(num, np.int32),
        "names": np.tile(name, num),
        "name_offsets": np.arange(num + 1) * len(name),
    }
    for column, values in columns.items():
        np.save(tmp_path / f"{column}.npy", values)
    mapped = {column: np.asarray(np.load(tmp_path / f"{column}.npy", mmap_mode="r")) for column in columns}
    used = []
    for index in (few, replace(few, **mapped)):
        made = train_loader(index, loading(batch_size=32, num_workers=1), RankInfo(device=CPU))
        actual = iter(made)
        for _ in range(1 if index is few else 20):
            assert len(next(actual)) == 32
        used.append(workers_of(made)[0].memory_full_info().uss / 1e6)
        actual.close()
    assert used[1] - used[0] < 60  # mostly the order of a pass, 5 MB, drawn for this and the next one
