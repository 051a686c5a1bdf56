"""Slow storage, rehearsed: it takes its time, answers with what it was told to, and gives the same bytes."""

import errno
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.folder_index import open_split
from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.data.storage.store import FolderStore
from imagenet_opt.data.storage.throttled_store import ThrottledStore
from imagenet_opt.errors import ReadTimeout


@pytest.fixture
def folder(images_root: Path, tmp_path: Path) -> FolderStore:
    return FolderStore(open_split(images_root, "train", tmp_path))


def test_bytes_names_and_requests_are_those_of_the_store(folder: FolderStore) -> None:
    indices = np.array([4, 0, 30])
    slow = pickle.loads(pickle.dumps(ThrottledStore(folder, latency_seconds=0.01, bytes_per_second=1e9)))
    assert slow.read_many(indices) == folder.read_many(indices)
    assert slow.name(4) == folder.name(4)
    assert [group.tolist() for group in slow.groups(indices)] == [[0], [1], [2]]


def test_each_request_waits_for_the_latency(folder: FolderStore) -> None:
    slow = ThrottledStore(folder, latency_seconds=0.05)
    began = time.monotonic()
    slow.read_many(np.array([0]))
    slow.read_many(np.arange(10))
    assert time.monotonic() - began >= 0.1


def test_requests_share_the_line(folder: FolderStore) -> None:
    num_bytes = sum(map(len, folder.read_many(np.arange(8))))
    slow = ThrottledStore(folder, bytes_per_second=num_bytes / 0.2)
    began = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(slow.read_many, np.arange(8)[:, None]))
    assert time.monotonic() - began >= 0.2 * 0.99


def test_a_fault_is_what_the_storage_answers(folder: FolderStore) -> None:
    def fault(index: int) -> None:
        if index == 3:
            raise OSError(errno.ESTALE, "Stale file handle")

    slow = ThrottledStore(folder, fault=fault)
    assert slow.read_many(np.array([2])) == folder.read_many(np.array([2]))
    with pytest.raises(OSError, match="Stale file handle"):
        slow.read_many(np.array([2, 3]))


def test_a_rehearsal_is_named_where_it_is_too_slow_to_wait_for(
    folder: FolderStore, caplog: pytest.LogCaptureFixture
) -> None:
    reader = ReadAhead(ThrottledStore(folder, latency_seconds=3), reads_in_flight=2, timeout_seconds=0.2)
    with pytest.raises(ReadTimeout, match=r"data\.added_latency_ms=3000 and data\.max_mb_per_second=null make it slow"):
        reader.read((0, 0), np.arange(2))
    assert "asking again (data.added_latency_ms=3000" in caplog.text
