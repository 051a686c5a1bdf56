"""What the cache keeps, and disks and folders that cannot hold it."""

import logging
import multiprocessing
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.storage.cache_folder import CacheFolder
from imagenet_opt.data.storage.cache_setup import open_cache
from imagenet_opt.data.storage.cached_store import CachedStore
from suites.faults.not_tried import NotTried
from suites.faults.small_disk import SmallDisk, small_disk
from tests.data.storage.stores import Listed

URL = "s3://bucket/train"
EACH = 10_000


@pytest.fixture
def storage(tmp_path: Path) -> Listed:
    """20 samples of 10 kB."""
    return Listed([bytes([i]) * EACH for i in range(20)], tmp_path / "reads")


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path / "small", 4_000_000) as made:
            yield made
    except NotTried as error:
        pytest.skip(str(error))


def opened(path: Path, storage: Listed, most_bytes: float = np.inf, url: str = URL) -> CacheFolder:
    folder = open_cache(path, url, storage.sizes, most_bytes=most_bytes)
    assert folder is not None
    return folder


def read_all(folder: CacheFolder, storage: Listed) -> list[int]:
    """Read everything twice; returns the samples that were fetched."""
    storage.file.write_text("")
    for _ in range(2):
        assert CachedStore(storage, folder).read_many(np.arange(20)) == storage.encoded
    return storage.read


def test_the_first_samples_that_fit_are_kept(storage: Listed, tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    folder = opened(tmp_path / "samples/f1", storage, 7.9 * EACH)
    assert read_all(folder, storage) == [*range(20), *range(7, 20)]
    assert read_all(opened(tmp_path / "samples/f1", storage, 9 * EACH), storage) == [*range(7, 20), *range(9, 20)]
    assert read_all(opened(tmp_path / "samples/f1", storage), storage) == list(range(9, 20))
    (line,) = told.messages
    assert "keeps 0.07 MB of the 0.20 MB of s3://bucket/train" in line and "the limit is data.cache_gb" in line


def test_a_cache_of_everything_is_no_news(storage: Listed, tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    opened(tmp_path / "samples/f1", storage)
    assert told.messages == []


def test_a_nearly_full_disk_limits_the_cache(storage: Listed, disk: SmallDisk, told: pytest.LogCaptureFixture) -> None:
    disk.fill(leave=300_000)  # 5 % of the disk are 200,000 bytes
    folder = opened(disk.seen / "samples/f1", storage)
    assert 5 < folder.num_kept < 10
    assert "the limit is the disk, of which 5 % stay free" in told.text
    assert read_all(folder, storage) == [*range(20), *range(folder.num_kept, 20)]
    assert opened(disk.seen / "samples/f1", storage).num_kept >= folder.num_kept  # its own bytes are no others'


@pytest.mark.parametrize(
    ("free_share", "reason"), [(0.05, "less than 5 % of the disk is free"), (0, "No space left on device")]
)
def test_a_full_disk_is_one_warning_of_all_processes_and_reading_goes_on(
    storage: Listed, disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_share: float, reason: str
) -> None:
    folder = opened(disk.seen / "samples/f1", storage)
    monkeypatch.setattr("imagenet_opt.data.storage.cache_folder._FREE_SHARE", free_share)
    CachedStore(storage, folder).read_many(np.arange(3))
    disk.fill()
    logger, handler = logging.getLogger("imagenet_opt"), logging.FileHandler(tmp_path / "log")
    logger.addHandler(handler)
    child = multiprocessing.get_context("fork").Process(target=read_all, args=(folder, storage))
    try:
        fetched = read_all(folder, storage)
        child.start()
        child.join(30)
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert child.exitcode == 0 and set(range(4, 20)) <= set(fetched)
    (warning,) = (tmp_path / "log").read_text().splitlines()
    assert f"{folder.path} (data.cache_dir) cannot be written: {reason}" in warning
    disk.free()
    read_all(opened(folder.path, storage), storage)
    assert read_all(opened(folder.path, storage), storage) == []


def test_a_read_only_cache_is_used_as_it_is(
    storage: Listed, disk: SmallDisk, tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    path = disk.seen / "samples/f1"
    writer = multiprocessing.get_context("fork").Process(
        target=lambda: CachedStore(storage, opened(path, storage)).read_many(np.arange(8))
    )
    writer.start()
    writer.join(30)  # a mapped file would keep the disk busy
    with (path / "segments/00000").open("r+b") as segment:
        segment.write(b"damaged")
    subprocess.run([*disk.prefix, "mount", "-o", "remount,ro", tmp_path / "small"], check=True)
    told.clear()
    folder = opened(path, storage)
    assert read_all(folder, storage) == 2 * [0, *range(8, 20)]
    (warning,) = told.messages
    assert warning.startswith(f"{path} (data.cache_dir) cannot be written: it is read-only; samples that")
    other = open_cache(disk.seen / "samples/f2", URL, storage.sizes, most_bytes=np.inf)
    assert other is None and "Set data.cache_dir to a folder on a local disk" in told.messages[-1]


def test_users_who_share_a_cache_may_finish_what_another_began(storage: Listed, tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        opened(tmp_path / "samples/f1", storage)
    finally:
        os.umask(before)
    for file in (tmp_path / "samples").rglob("*"):
        assert file.stat().st_mode & stat.S_IWGRP, file


def test_a_file_in_place_of_the_folder_is_named(
    storage: Listed, tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert open_cache(tmp_path / "file/samples/f1", URL, storage.sizes, most_bytes=np.inf) is None
    (warning,) = told.messages
    assert "file/samples/f1 (data.cache_dir) cannot be a cache: Not a directory; each epoch reads all" in warning


def test_a_cache_of_other_data_is_not_used_and_an_older_one_of_this_data_is_named(
    storage: Listed, tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    read_all(opened(tmp_path / "samples/f1", storage), storage)
    opened(tmp_path / "samples/val", storage, url="s3://bucket/val")
    (tmp_path / "samples/no_cache").mkdir()
    told.clear()
    storage.encoded = [b"new" + sample[3:] for sample in storage.encoded]
    assert read_all(opened(tmp_path / "samples/f2", storage), storage) == list(range(20))
    (line,) = told.messages
    assert line.startswith(
        f"{tmp_path}/samples/f1 (data.cache_dir) is a cache of {URL} as it was before, and takes 0.20"
    )
    assert line.endswith("you may delete this folder")


@pytest.mark.parametrize("damage", ["about.json", "state", "starts", "sizes"])
def test_a_damaged_cache_starts_empty(storage: Listed, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "samples/f1"
    read_all(opened(path, storage), storage)
    if damage == "sizes":
        (path / "starts").write_bytes(bytes((path / "starts").stat().st_size))
    else:
        (path / damage).write_bytes((path / damage).read_bytes()[:-1])
    assert read_all(opened(path, storage), storage) == list(range(20))


def test_a_sample_of_another_size_is_not_kept(storage: Listed, tmp_path: Path) -> None:
    folder = opened(tmp_path / "samples/f1", storage)
    storage.encoded[3] += b"more"
    assert read_all(folder, storage) == [*range(20), 3]
