"""Samples from the cache are those of the storage, also after a kill or damage, and on small and full disks."""

import logging
import multiprocessing
import os
import pickle
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.storage.cache_folder import open_cache
from imagenet_opt.data.storage.store import CachedStore
from suites.faults.flaky_folder import NotTried
from suites.faults.small_disk import SmallDisk, small_disk
from tests.data.storage.stores import Samples

NUM = 60
URL = "s3://bucket/train"
Open = Callable[..., CachedStore]


@pytest.fixture
def storage() -> Samples:
    rng = np.random.default_rng(0)
    return Samples(group=2, encoded=[rng.bytes(int(size)) for size in rng.integers(0, 200, NUM)])


@pytest.fixture
def reopen(storage: Samples, tmp_path: Path) -> Open:
    """Opens the cache of `storage` as a new run would. most_bytes: see `open_cache`."""

    def open_store(most_bytes: float = np.inf, parent: Path = tmp_path) -> CachedStore:
        folder = open_cache(parent / "samples/f1", URL, storage.sizes, most_bytes=most_bytes)
        assert folder is not None
        return CachedStore(storage, folder)

    return open_store


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path / "small", 4_000_000) as made:
            yield made
    except NotTried as error:
        pytest.skip(str(error))


def read_all(store: CachedStore, seed: int = 0, portion: int = 7) -> list[int]:
    """Read all samples in random order, and some twice, and compare them with those of the storage. Returns the samples
    that were fetched, in order of their number."""
    store.store.read.clear()
    order = np.random.default_rng(seed).permutation(np.concatenate([np.arange(NUM), np.arange(5)]))
    for start in range(0, len(order), portion):
        indices = order[start : start + portion]
        assert store.read_many(indices) == [store.store.encoded[index] for index in indices]
    return sorted(set(store.store.read))


@pytest.mark.parametrize("segment_bytes", [2**26, 500])
def test_samples_are_those_of_the_storage_and_are_fetched_once(
    storage: Samples, reopen: Open, segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagenet_opt.data.storage.cache_folder._SEGMENT_BYTES", segment_bytes)
    store = reopen()
    assert read_all(store) == list(range(NUM))
    assert read_all(store, 1, portion=1) == read_all(pickle.loads(pickle.dumps(store)), 2) == []
    assert read_all(reopen(), 3) == []  # after a restart
    starts = np.cumsum(storage.sizes) - storage.sizes
    segments = {f"{start // segment_bytes:05d}" for start in starts.tolist()}
    assert {file.name for file in (store.folder.path / "segments").iterdir()} == segments


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_on_disk_is_found_after_a_restart_and_repaired(storage: Samples, reopen: Open, damage: str) -> None:
    read_all(reopen())
    (segment,) = (reopen().folder.path / "segments").iterdir()
    content = bytearray(segment.read_bytes())
    begin = int(storage.sizes[:30].sum())  # of sample 30
    content[begin] ^= 1
    if damage == "remove":
        segment.unlink()
    else:
        segment.write_bytes(content if damage == "flip" else content[: begin + 1])
    lost = {"flip": [30], "cut": list(range(30, NUM)), "remove": list(range(NUM))}[damage]
    lost = [index for index in lost if storage.sizes[index] and (index != 30 or storage.sizes[30] > 1)]
    store = reopen()
    assert read_all(store) == lost and store.events.take()["cache_damaged"] == len(lost)
    assert read_all(reopen(), seed=1) == []


@pytest.mark.parametrize("damage", ["state", "starts", "sizes"])
def test_a_cache_with_damaged_columns_starts_empty(reopen: Open, damage: str) -> None:
    read_all(store := reopen())
    file = store.folder.path / ("starts" if damage == "sizes" else damage)
    file.write_bytes(bytes(file.stat().st_size) if damage == "sizes" else file.read_bytes()[:-1])
    assert read_all(reopen()) == list(range(NUM))


def test_a_killed_process_leaves_whole_samples(storage: Samples, reopen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite

    def die_halfway(descriptor: int, content: bytes, offset: int) -> int:
        if len(content) != storage.sizes[31]:
            return pwrite(descriptor, content, offset)
        pwrite(descriptor, content[: len(content) // 2], offset)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def write_half() -> None:
        monkeypatch.setattr(os, "pwrite", die_halfway)
        store = reopen()
        for index in (*range(30), 31):
            if storage.sizes[index] != storage.sizes[31] or index == 31:
                store.read_many(np.array([index]))

    storage.encoded[31] = b"x" * 201  # no other sample has this size
    child = multiprocessing.get_context("fork").Process(target=write_half)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    store = reopen()
    assert store.folder.state[:32].tolist() == [1] * 30 + [0, 0]
    assert read_all(store) == list(range(30, NUM)) and store.events.take()["cache_damaged"] == 0


def test_the_first_samples_that_fit_are_kept(storage: Samples, reopen: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    few, more = storage.sizes[:8].sum() - 1, storage.sizes[:9].sum()
    store = reopen(few)
    assert read_all(store) == list(range(NUM)) and read_all(store) == list(range(7, NUM))
    assert "the limit is data.cache_gb" in caplog.text
    read_all(reopen(more))
    assert read_all(reopen(few)) == list(range(9, NUM))  # samples that a larger cache has kept are used
    read_all(reopen())
    caplog.clear()
    assert read_all(reopen()) == [] and not caplog.messages


def test_a_full_disk_is_one_warning_and_reading_goes_on(
    storage: Samples, reopen: Open, disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    storage.encoded = [bytes([i]) * 10_000 for i in range(NUM)]
    disk.fill(leave=450_000)  # 5 % of the disk are 200,000 bytes
    assert 15 < reopen(parent=disk.seen).folder.num_kept < 26
    disk.free()
    store = reopen(parent=disk.seen)
    store.read_many(np.arange(3))
    disk.fill()
    assert set(range(4, NUM)) <= set(read_all(store))
    (warning,) = [message for message in caplog.messages if "cannot be written" in message]
    assert "data.cache_dir" in warning
    disk.free()
    assert read_all(reopen(parent=disk.seen)) and read_all(reopen(parent=disk.seen)) == []


def test_users_who_share_a_cache_may_finish_what_another_began(reopen: Open, tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        read_all(reopen())
    finally:
        os.umask(before)
    for file in (tmp_path / "samples").rglob("*"):
        assert file.stat().st_mode & stat.S_IWGRP, file
