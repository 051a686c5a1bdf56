"""Memory and open files of loaders: plans, and the real use of workers."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
from torch.utils.data import DataLoader

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.loader import RankInfo, train_loader
from imagenet_opt.data.prefetcher import DevicePrefetcher
from tests.data.conftest import CPU, MakeLoader, batches, loading


def workers_of(made: DevicePrefetcher) -> list[psutil.Process]:
    assert isinstance(made.loader, DataLoader)
    return [psutil.Process(worker.pid) for worker in made.loader._iterator._workers]


def anonymous_mb(process: psutil.Process) -> float:
    """Memory without files and shared memory. Memory shared by a fork counts, so a write changes nothing."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1e3


def test_memory_and_open_files_do_not_grow(images_root: Path, loader: MakeLoader) -> None:
    """Six epochs that kept their batches would add 130 MB, or 36 open files."""
    made = loader(images_root, num_workers=1, resize_on="device", image_size=224)

    def used() -> Iterator[float]:
        for process in (*workers_of(made), psutil.Process()):
            yield anonymous_mb(process)
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
