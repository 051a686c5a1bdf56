"""Samples of experiments: drawn once, in memory or on storage."""

from pathlib import Path

import pytest
import torch

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.loader import RankInfo, train_loader
from imagenet_opt.measure.storage.page_cache import evict, residency
from imagenet_opt.probe.samples import Rows, Samples
from tests.conftest import loading, write_images


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), num_classes=3, per_class=60)


def samples(root: Path, cache: Path, **how: int | str) -> Samples:
    return Samples(open_index(root, "train", cache), loading(**how))


def test_no_experiment_reads_the_samples_of_read_few(root: Path, tmp_path: Path) -> None:
    own = samples(root, tmp_path)
    own.read_few()
    few = set(own.warm_rows.tolist())
    assert len(few) == len(own.encoded) == 32
    own.read_few()
    assert not few & set(own.take(180 - 32).tolist())


def test_with_blocks_neighbours_are_taken_together(root: Path, tmp_path: Path) -> None:
    """180 samples are 22 blocks of 8; a request for 12 samples takes two blocks, and a batch reads whole ones."""
    own = samples(root, tmp_path, shuffle="block", batch_size=8)
    assert sorted(own.rows.tolist()) == list(range(176))
    for _ in range(3):
        rows = own.take(12).reshape(-1, 8)
        assert len(rows) == 2 and (rows - rows[:, :1] == range(8)).all() and not (rows[:, 0] % 8).any()
    listed, place = own.listed(rows.ravel(), 160), RankInfo(device=torch.device("cpu"))
    loader = train_loader(listed, own.loading, place, own.store_for(listed, cold=True))
    batches = (loader.loader.dataset.order.sample_ids(0, step).indices for step in range(20))
    assert {tuple(rows.ravel()[batch % 16]) for batch in batches} == {tuple(block) for block in rows}
    assert len(samples(root, tmp_path, shuffle="block", batch_size=1).rows) == 180


def evict_or_skip(own: Samples, rows: Rows) -> None:
    for extent in own.extents(rows):
        evict(extent.path, write_out=True)
        if residency(extent.path).share != 0:
            pytest.skip("nothing can be evicted here")


def test_dropped_samples_are_on_storage_again_and_warm_samples_stay_in_memory(root: Path, tmp_path: Path) -> None:
    own = samples(root, tmp_path)
    rows = own.take(8)
    evict_or_skip(own, rows)
    kept, dropped = own.read(rows), own.read_and_drop(rows)
    assert kept == dropped and all(kept)
    assert {residency(extent.path).share for extent in own.extents(rows)} == {0.0}
    own.warm(0.0)
    assert own.kept().share == 1.0
