"""The rows of a benchmark and the batches that they load."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from imagenet_opt.bench.benchmark import check_files, job_of
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.turn import (
    REGION,
    WORKER,
    BenchJob,
    BenchTurn,
    check_peer_batch,
    measured,
    ours,
    packed,
    run_turn,
    take_turn,
)
from imagenet_opt.data.batch import RaggedBatch
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.storage.store import CachedStore
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from tests.conftest import loading
from tests.object_server import upload

HOW = loading(num_workers=1)


@pytest.fixture
def job(images_root: Path, tmp_path: Path) -> BenchJob:
    """In this process, two batches discarded and three timed."""
    made = job_of(open_index(images_root, "train", tmp_path), HOW, 3)
    return replace(made, num_workers=0, num_warmup=2, num_batches=3, row=WORKER)


def test_our_rows_are_the_training_loader(job: BenchJob) -> None:
    batch = next(iter(ours(job)))
    assert (batch.images.dtype, tuple(batch.images.shape)) == (torch.uint8, (6, 3, 32, 32))
    ragged = ours(replace(job, row=REGION, loading=replace(HOW, region_decode=False)))
    first = next(iter(ragged))
    assert isinstance(first, RaggedBatch) and len(first) == 6
    assert ragged.loader.dataset.decoder.region_decode
    assert ragged.pop_metrics()["loader/mb_read"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")
@pytest.mark.parametrize("name", PEERS)
def test_installed_peers_give_the_requested_images(name: str, job: BenchJob, tmp_path: Path) -> None:
    if not PEERS[name].installed:
        pytest.skip(f"{name} is not installed: {PEERS[name].install}")
    job = replace(job, row=name, num_warmup=1, num_batches=2, packed=tmp_path / "packed")
    if PEERS[name].packs:
        packed(job)
    turn = run_turn(job) if PEERS[name].packs else BenchTurn(**measured(job))  # WebDataset leaves its files open
    assert (turn.num_images, turn.stages) == (12, {}) and turn.seconds > 0


@pytest.mark.parametrize(
    ("images", "delivered"),
    [
        (torch.zeros(6, 3, 32, 32), "float32 (6, 3, 32, 32)"),
        (np.zeros((5, 32, 32, 3), np.uint8), "uint8 (5, 32, 32, 3)"),
    ],
)
def test_other_images_of_a_peer_fail_its_turn(images: Any, delivered: str, job: BenchJob) -> None:
    with pytest.raises(TurnFailed, match=re.escape(delivered)):
        check_peer_batch(images, job)
    check_peer_batch(np.zeros((6, 32, 32, 3), np.uint8), job)


def test_objects_come_from_the_local_cache(images_root: Path, bucket: str, tmp_path: Path) -> None:
    objects = open_index(upload(images_root, bucket), "train", tmp_path / "cache")
    job = replace(job_of(objects, HOW, 4), num_workers=0, row=WORKER)
    assert take_turn(ours(job), job).num_images > 0
    cached = store_of(objects, HOW)
    assert isinstance(cached, CachedStore)
    assert len(cached.folder.missing()) < len(objects) / 2  # a turn need not read every image
    with pytest.raises(ConfigError, match=r"--against .*\(data\.root\) is a URL"):
        check_files(objects, "--against")


def test_a_packed_set_is_not_for_peers(images_root: Path, tmp_path: Path) -> None:
    pack(images_root, tmp_path / "out", PackOptions(shard_mb=0.03))
    index = open_shards(tmp_path / "out" / "train")
    job = job_of(index, HOW, 4)
    assert [job.long_index().path(i) for i in (3, 42, 81)] == [index.path(3)] * 3
    with pytest.raises(ConfigError, match=r"--same-bytes .*\(data\.root\) has many images in a file"):
        check_files(index, "--same-bytes")
