"""Filling the cache of a remote split: each image once, resumed where it stopped."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.storage.cache_folder import open_cache
from imagenet_opt.data.storage.store import CachedStore
from imagenet_opt.errors import ConfigError
from imagenet_opt.hydrate.hydrate import CacheFiller, Tally, fetch
from suites.faults.flaky_folder import NotTried
from suites.faults.small_disk import small_disk
from tests.data.storage.stores import Samples

URL = "s3://bucket/train"
Fill = Callable[..., Tally]


@pytest.fixture
def storage() -> Samples:
    """40 images of 10 kB."""
    return Samples(group=2, encoded=[bytes([i]) * 10_000 for i in range(40)])


@pytest.fixture
def fill(storage: Samples, tmp_path: Path) -> Fill:
    """Runs the command once more."""

    def call(parent: Path = tmp_path) -> Tally:
        folder = open_cache(parent / "samples/f1", URL, storage.sizes, most_bytes=np.inf)
        assert folder is not None
        return fetch([CacheFiller(URL, CachedStore(storage, folder), read_timeout=0.4)], in_flight=5)

    return call


def test_each_image_is_fetched_once(storage: Samples, fill: Fill) -> None:
    done = fill()
    assert (done.num_files, done.num_bytes, sorted(storage.read)) == (40, 400_000, list(range(40)))
    assert fill().num_files == 0 and len(storage.read) == 40


def test_a_stopped_command_resumes(storage: Samples, fill: Fill) -> None:
    def stop(index: int) -> None:
        if index == 31:
            raise KeyboardInterrupt

    storage.each = stop
    with pytest.raises(KeyboardInterrupt):
        fill()
    storage.each = lambda index: None
    before = set(storage.read) - {30}  # 30 was read together with 31
    fill()  # requests that were in flight at the stop may still end meanwhile
    assert len(before) >= 20 and sorted(storage.read) == sorted([*range(40), 30])


def test_a_split_without_a_cache_is_refused(storage: Samples) -> None:
    with pytest.raises(ConfigError, match=r"data\.cache_gb=null.* data\.cache_dir"):
        CacheFiller(URL, storage, read_timeout=1.0)
    assert storage.read == []


def test_a_full_disk_ends_the_command(storage: Samples, fill: Fill, tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "small", 2_000_000) as disk:
            storage.each = lambda index: disk.fill() if index == 7 else None
            with pytest.raises(ConfigError, match=r"\(data\.cache_dir\) cannot be written: .*; free room.* it resumes"):
                fill(disk.seen)
    except NotTried as error:
        pytest.skip(str(error))
