"""Batches through the local cache of a remote split: the same images, and metrics of the cache."""

import dataclasses
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.index_cache import save
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.split import Split, subset
from imagenet_opt.data.loader import RankInfo, store_of, train_loader
from imagenet_opt.data.storage.store import CachedStore
from tests.data.conftest import CPU, MakeLoader, assert_equal, batches, loading


class RemoteFolder(Split):
    """A folder on disk that looks like an object storage."""

    is_remote = True


@pytest.fixture
def storage(images_root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(images_root, tmp_path / "storage"))


@pytest.fixture
def index(storage: Path, tmp_path: Path) -> RemoteFolder:
    here = open_index(storage, "train", tmp_path / "cache")
    sizes = np.array([Path(here.path(i)).stat().st_size for i in range(len(here))])
    kept = save(tmp_path / "cache/index/this", dataclasses.replace(here, sizes=sizes))
    return RemoteFolder(**{field.name: getattr(kept, field.name) for field in dataclasses.fields(kept)})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_the_same_and_once_all_samples_are_cached_no_storage_is_needed(
    index: RemoteFolder, loader: MakeLoader, storage: Path, images_root: Path, num_workers: int
) -> None:
    plain = loader(images_root, batch_size=13)
    cached = train_loader(index, loading(batch_size=13, num_workers=num_workers), RankInfo(device=CPU))
    assert_equal(batches(cached, epoch=1), batches(plain, epoch=1))
    assert cached.pop_metrics()["loader/cache_hit_percent"] < 100
    assert "loader/cache_hit_percent" not in plain.pop_metrics()
    batches(cached, epoch=1)
    cached.pop_metrics()
    shutil.rmtree(storage)
    assert_equal(batches(cached, epoch=500), batches(plain, epoch=500))  # far behind what was read ahead
    metrics = cached.pop_metrics()
    assert metrics["loader/cache_hit_percent"] == 100 and metrics["loader/cache_damaged"] == 0
    cached.close()


def test_a_part_of_a_split_shares_the_cache_of_the_split(index: RemoteFolder, storage: Path) -> None:
    encoded = [Path(index.path(i)).read_bytes() for i in range(len(index))]
    part = subset(subset(index, np.array([7, 5, 3, 1])), np.array([3, 0, 3, 1]))  # samples 1, 7, 1 and 5
    store = store_of(part, loading())
    rows = np.array([2, 3, 0, 1])
    assert store.read_many(rows) == [encoded[i] for i in (1, 5, 1, 7)]
    assert len(store) == 4 and store.name(1) == index.path(7)
    whole = store_of(index, loading())
    assert isinstance(whole, CachedStore) and np.flatnonzero(whole.folder.state).tolist() == [1, 5, 7]
    shutil.rmtree(storage)
    copy = pickle.loads(pickle.dumps(store_of(part, loading())))
    assert copy.read_many(rows) == store.read_many(rows) and copy.holds(rows)
    assert [group.tolist() for group in copy.groups(rows)] == [[0, 1, 2, 3]]
    for direct in (store_of(part, loading(cache_gb=0)), store_of(part, loading(), use_cache=False)):
        assert direct.name(1) == index.path(7)
        with pytest.raises(OSError, match="has disappeared"):
            direct.read_many(rows)
