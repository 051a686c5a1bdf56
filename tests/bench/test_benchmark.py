"""The rows of a benchmark, the batches that they load, and their failures."""

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from imagenet_opt.bench import benchmark
from imagenet_opt.bench.benchmark import check_files, encoded_again, job_of, rows_of
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.turn import (
    CEILING,
    REGION,
    WORKER,
    Job,
    check_peer_batch,
    crops_in_memory,
    ours,
    run_turn,
    take_turn,
    write_packed,
)
from imagenet_opt.data.batch import RaggedBatch
from imagenet_opt.data.decode.decoder import region_codec
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.storage.store import CachedStore
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from tests.conftest import loading, write_images
from tests.object_server import upload

HOW = loading(num_workers=1)


@pytest.fixture
def index(images_root: Path, tmp_path: Path) -> Split:
    return open_index(images_root, "train", tmp_path)


@pytest.fixture
def job(index: Split) -> Job:
    """In this process, two batches discarded and three timed."""
    return replace(job_of(index, HOW, 3), num_workers=0, num_warmup=2, num_batches=3, row=WORKER)


@pytest.mark.parametrize(
    ("resize_on", "against", "rows"),
    [
        ("auto", ["timm"], [WORKER, REGION, CEILING, "timm"]),
        ("worker", [], [WORKER]),
        ("device", [], [REGION, CEILING]),
    ],
)
def test_the_rows_follow_where_images_are_resized(resize_on: str, against: list[str], rows: list[str]) -> None:
    assert rows_of(replace(HOW, resize_on=resize_on), against) == rows


def test_no_epoch_ends_within_a_turn_and_workers_make_equal_shares(
    index: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagenet_opt.machine.usable_cpus", lambda: 8)
    job = job_of(index, replace(HOW, num_workers=3, prefetch_factor=4), 10)
    assert (job.num_workers, job.num_warmup, job.num_batches) == (3, 12, 12)
    assert len(job.long_index()) == len(job.samples()) == 39 * job.passes
    assert len(job.samples()) // HOW.batch_size >= 12 + 12 + 3 * 4


def test_all_rows_read_the_same_part_of_a_large_set(index: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "MOST_FILES", 12)
    part, everything = job_of(index, HOW, 3), job_of(index, HOW, 3)
    everything = replace(everything, index=index)
    assert len(set(part.samples())) == 12 and set(part.samples()) < set(everything.samples())


class Clocked:
    """Batches of 4 images on an injected clock: the first five take 3 s each, all others 2 s."""

    def __init__(self, num_batches: int) -> None:
        self.now, self.num_batches, self.num_taken = 0.0, num_batches, 0

    def __iter__(self) -> Iterator[list[int]]:
        for i in range(self.num_batches):
            self.now += 3 if i < 5 else 2
            self.num_taken += 1
            yield [i] * 4

    def pop_metrics(self) -> dict[str, float]:
        num_taken, self.num_taken = self.num_taken, 0
        return {"batches": num_taken}


def test_start_and_warm_up_are_left_out(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, job = Clocked(100), replace(job, num_warmup=5, num_batches=5)
    monkeypatch.setattr("time.perf_counter", lambda: loader.now)
    turn = take_turn(loader, job)
    assert (turn.num_images, turn.seconds, turn.images_per_second, turn.stages) == (20, 10.0, 2.0, {"batches": 5})
    for num in (0, 5, 9):
        with pytest.raises(ValueError, match=f"after {max(0, num - 5)} of 5 timed batches"):
            take_turn(Clocked(num), job)


def test_our_rows_are_the_training_loader(job: Job) -> None:
    batch = next(iter(ours(job)))
    assert (batch.images.dtype, tuple(batch.images.shape)) == (torch.uint8, (6, 3, 32, 32))
    ragged = ours(replace(job, row=REGION, loading=replace(HOW, region_decode=False)))
    first = next(iter(ragged))
    assert isinstance(first, RaggedBatch) and len(first) == 6
    assert ragged.loader.dataset.decoder.region_decode
    assert ragged.pop_metrics()["loader/mb_read"] > 0


def test_the_ceiling_decodes_crops_of_training(job: Job) -> None:
    pytest.importorskip("nvidia.nvimgcodec")
    crops, codec = list(crops_in_memory(job, 0)), region_codec()
    assert len(crops) == 39
    for encoded, (top, left, height, width) in crops:
        stream = codec.parse(encoded)
        assert 0 <= top <= stream.height - height and 0 <= left <= stream.width - width
        assert codec.decode(stream, (top, left, height, width)).shape == (height, width, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if not peer.latency])
def test_installed_peers_give_the_requested_images(name: str, job: Job, tmp_path: Path) -> None:
    """test_added_latency_is_slept_at_every_open tests the other peers, in this process."""
    if not PEERS[name].installed:
        pytest.skip(f"{name} is not installed: {PEERS[name].install}")
    job = replace(job, row=name, num_workers=1, num_warmup=1, num_batches=2, packed=tmp_path / "packed")
    if PEERS[name].packs:
        write_packed(job)
    turn = run_turn(job)
    assert (turn.num_images, turn.stages) == (12, {}) and turn.seconds > 0


@pytest.mark.parametrize(
    ("images", "delivered"),
    [
        (torch.zeros(6, 3, 32, 32), "float32 (6, 3, 32, 32)"),
        (np.zeros((5, 32, 32, 3), np.uint8), "uint8 (5, 32, 32, 3)"),
    ],
)
def test_other_images_of_a_peer_fail_its_turn(images: Any, delivered: str, job: Job) -> None:
    with pytest.raises(TurnFailed, match=re.escape(delivered)):
        check_peer_batch(images, job)
    check_peer_batch(np.zeros((6, 32, 32, 3), np.uint8), job)


@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")  # of torchvision's peer
def test_added_latency_is_slept_at_every_open(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    slow = replace(job, loading=replace(HOW, added_latency_ms=250.0))
    for name in (name for name, peer in PEERS.items() if peer.latency):
        check_peer_batch(next(iter(PEERS[name].function()(slow))), job)
        assert slept == [0.25] * 6
        slept.clear()


def test_every_image_is_one_of_quality_90_in_its_class(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", num_classes=2, per_class=3)
    first, *_, last = sorted((root / "train").rglob("*.JPEG"))
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(pixels).save(first, "JPEG", quality=100)
    last.write_bytes(b"no image")
    index = open_index(root, "train", tmp_path / "cache")
    again = encoded_again(index, tmp_path / "copies")
    assert again.classes == index.classes and again.labels.tolist() == [0, 0, 0, 1, 1]
    expected = io.BytesIO()
    Image.open(first).save(expected, "JPEG", quality=90)
    assert Path(again.path(0)).read_bytes() == expected.getvalue()


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
