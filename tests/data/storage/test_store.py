"""Stores: bytes of files with any name, errors of the system, and rehearsals of slow storage."""

import errno
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.data.storage.store import ThrottledStore


@pytest.fixture
def folder(images_root: Path, tmp_path: Path) -> RecordStore:
    return RecordStore(open_index(images_root, "val", tmp_path))


def test_bytes_are_in_the_order_of_the_request(folder: RecordStore, images_root: Path) -> None:
    files = sorted((images_root / "val").glob("*/*.JPEG"))
    assert folder.read_many(np.array([38, 0, 7, 7])) == [files[i].read_bytes() for i in (38, 0, 7, 7)]
    assert [group.tolist() for group in folder.groups(np.array([38, 0, 7]))] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("what", "code"),
    [
        *(("nothing", errno.ENOENT), ("folder", errno.EISDIR), ("loop", errno.ELOOP), ("no right", errno.EACCES)),
        *(("device", errno.ENXIO), ("pipe", errno.ENXIO), ("hole", errno.EFBIG)),
    ],
)
def test_errors_of_the_system_are_raised(what: str, code: int, tmp_path: Path) -> None:
    file = tmp_path / "data/train/a/x.JPEG"
    file.parent.mkdir(parents=True)
    file.touch()
    index = open_index(tmp_path / "data", "train", tmp_path / "cache")
    file.unlink()
    if what == "folder":
        file.mkdir()
    elif what == "loop":
        file.symlink_to(file)
    elif what == "device":
        file.symlink_to("/dev/zero")
    elif what == "pipe":
        os.mkfifo(file)
    elif what == "hole":
        file.touch()
        os.truncate(file, 2**40)
    elif what == "no right":
        if os.geteuid() == 0:
            pytest.skip("root reads every file")
        file.touch(mode=0)
    with pytest.raises(OSError) as caught:
        RecordStore(index).read_many(np.array([0]))
    assert caught.value.errno == code


def test_each_request_waits_for_the_latency_and_all_share_the_link(folder: RecordStore) -> None:
    slow = pickle.loads(pickle.dumps(ThrottledStore(folder, latency_seconds=0.05)))
    began = time.monotonic()
    slow.read_many(np.array([0]))
    assert slow.read_many(np.arange(10)) == folder.read_many(np.arange(10))
    assert time.monotonic() - began >= 0.1
    num_bytes = sum(map(len, folder.read_many(np.arange(8))))
    slow = ThrottledStore(folder, bytes_per_second=num_bytes / 0.2)
    began = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(slow.read_many, np.arange(8)[:, None]))
    assert time.monotonic() - began >= 0.2 * 0.99
