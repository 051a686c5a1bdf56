"""The rows of a benchmark, the batches that they load, and their failures."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from imagenet_opt.bench import plan as bench_plan
from imagenet_opt.bench.files import read_into_memory
from imagenet_opt.bench.job import CEILING, REGION, WORKER, Job
from imagenet_opt.bench.own_loaders import Ours, _crops
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.plan import measure
from imagenet_opt.bench.turn import check_peer_batch, run_turn, write_packed
from imagenet_opt.data.batch import RaggedBatch
from imagenet_opt.data.decode.region_codec import region_codec
from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardStore, open_shards
from imagenet_opt.data.loader import open_index, store_of
from imagenet_opt.data.storage.cached_store import CachedStore
from imagenet_opt.errors import ConfigError, DataError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.measure.storage.page_cache import evict
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from tests.bench.conftest import HOW, plan_of
from tests.object_server import upload


@pytest.mark.parametrize(
    ("resize_on", "has_gpu", "against", "sides", "device"),
    [
        ("auto", False, (), [WORKER, REGION, CEILING], "cpu"),
        ("auto", True, (), [REGION, CEILING], "cuda"),
        ("auto", True, ("timm",), [WORKER, REGION, CEILING, "timm"], "cpu"),
        ("worker", False, (), [WORKER], "cpu"),
        ("device", False, ("torchvision",), [REGION, CEILING, "torchvision"], "cpu"),
    ],
)
def test_the_rows_follow_where_images_are_resized(
    resize_on: str, has_gpu: bool, against: tuple[str, ...], sides: list[str], device: str, index: FileIndex
) -> None:
    plan = plan_of(index, replace(HOW, resize_on=resize_on), has_gpu=has_gpu, against=against)
    assert (list(plan.sides), plan.absent, plan.job.device) == (sides, {}, device)


def test_no_epoch_ends_within_a_turn_and_workers_make_equal_shares(
    index: FileIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagenet_opt.machine.usable_cpus", lambda: 8)
    job = plan_of(index, replace(HOW, num_workers=3, prefetch_factor=4), num_batches=10).job
    assert (job.num_workers, job.num_warmup, job.num_batches) == (3, 12, 12)
    assert len(job.long_index()) == len(job.samples()) == 39 * job.passes
    assert len(job.samples()) // HOW.batch_size >= 12 + 12 + 3 * 4


def test_rows_that_cannot_be_measured_have_a_reason(index: FileIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "dali", PEERS["dali"]._replace(needs="no_such_package.at_all"))
    monkeypatch.setitem(PEERS, "webdataset", PEERS["webdataset"]._replace(needs="json"))
    for changes, names, absent in (
        ({}, ("torchvision", "dali", "webdataset"), {"dali": 'not installed: pip install "imagenet-opt[bench]"'}),
        ({"added_latency_ms": 5.0}, ("torchvision", "webdataset"), {"webdataset": "not with data.added_latency_ms"}),
        ({"max_mb_per_second": 5.0}, ("torchvision",), {"torchvision": "not with data.max_mb_per_second"}),
    ):
        assert plan_of(index, replace(HOW, **changes), against=names).absent == absent


def test_all_rows_read_the_same_part_of_a_large_set(index: FileIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_plan, "MOST_FILES", 12)
    plan = plan_of(index)
    assert (plan.data["files"], plan.data["files_used"], plan.job.num_files) == (39, 12, 12)
    everything = {(index.path(i), int(label)) for i, label in enumerate(index.labels)}
    assert len(set(plan.job.samples())) == 12 and set(plan.job.samples()) < everything
    monkeypatch.setattr("imagenet_opt.machine.available_memory", lambda: 0)
    assert plan_of(index).job.num_files == HOW.batch_size, "what the memory keeps, at least a batch"


@pytest.mark.slow
def test_objects_come_from_the_local_cache_but_not_beside_peers(
    images_root: Path, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = open_index(upload(images_root, bucket), "train", tmp_path / "cache")
    for cache_gb, num_filling in ((0, 0), (None, 1)):
        plan = plan_of(objects, replace(HOW, resize_on="worker", cache_gb=cache_gb))
        rounds, state = measure(plan, repeats=1)
        assert rounds.results[WORKER][0].num_images > 0
        assert state == ("samples in the local cache" if num_filling else "samples from the URL in each turn")
        assert capsys.readouterr().err.count("a turn that fills the local cache") == num_filling
    cached = store_of(objects, HOW)
    assert isinstance(cached, CachedStore) and not len(cached.folder.missing())
    for beside, option in (({"against": ("timm",)}, "--against"), ({"same_bytes": True}, "--same-bytes")):
        words = f"{option} needs a folder of image files, but {bucket}/train .data.root. is a URL; leave {option} out"
        with pytest.raises(ConfigError, match=words):
            plan_of(objects, **beside)


def test_a_packed_set_is_measured_but_not_beside_peers(images_root: Path, tmp_path: Path) -> None:
    pack(images_root, tmp_path / "out", PackOptions(shard_mb=0.03))
    index = open_shards(tmp_path / "out" / "train")
    job = plan_of(index).job
    long, store = job.long_index(), ShardStore(index)
    assert len(long) == 39 * job.passes > 39
    assert [long.path(i) for i in (3, 42, 81)] == [index.path(3)] * 3
    assert ShardStore(long).read_many(np.array([45, 38, 39])) == store.read_many(np.array([6, 38, 0]))
    for beside, option in (({"against": ("timm",)}, "--against"), ({"same_bytes": True}, "--same-bytes")):
        with pytest.raises(
            ConfigError, match=rf"{option} needs a folder of image files, but .* \(data.root\) is packed"
        ):
            plan_of(index, **beside)


def test_our_rows_are_the_training_loader(job: Job) -> None:
    batch = next(iter(Ours(job)))
    assert (batch.images.dtype, tuple(batch.images.shape)) == (torch.uint8, (6, 3, 32, 32))
    ragged = Ours(replace(job, side=REGION))
    first = next(iter(ragged))
    assert isinstance(first, RaggedBatch) and len(first) == 6
    full = replace(job, loading=replace(HOW, region_decode=False))
    decoders = [Ours(changed).prefetcher.loader.dataset.decoder for changed in (full, replace(full, side=REGION))]
    assert [decoder.region_decode for decoder in decoders] == [False, True]
    assert ragged.pop_metrics()["loader/mb_read"] > 0 and ragged.pop_metrics() == {"num_workers": 0.0}


def test_the_ceiling_decodes_the_crops_of_our_loader(job: Job) -> None:
    pytest.importorskip("nvidia.nvimgcodec")
    batches = [batch for _, batch in zip(range(3), Ours(replace(job, side=REGION)), strict=False)]
    sizes = [(h, w) for batch in batches for h, w in zip(batch.heights.tolist(), batch.widths.tolist(), strict=True)]
    crops, codec = list(_crops(job, 0)), region_codec()
    assert [(height, width) for _, (_, _, height, width) in crops[: len(sizes)]] == sizes
    assert len(crops) == 78
    (encoded, box), (height, width) = crops[0], sizes[0]
    first = batches[0].pixels[: 3 * height * width].view(height, width, 3).numpy()
    np.testing.assert_array_equal(codec.decode(codec.parse(encoded), box), first)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if not peer.latency])
def test_installed_peers_give_the_requested_images(name: str, job: Job, tmp_path: Path) -> None:
    """test_added_latency_is_slept_at_every_open tests the other peers, in this process."""
    if not PEERS[name].installed:
        pytest.skip(f"{name} is not installed: {PEERS[name].install}")
    job = replace(job, side=name, num_workers=1, num_warmup=1, num_batches=2, packed=tmp_path / "packed")
    if PEERS[name].packs:
        write_packed(job)
        written = {path: path.stat().st_mtime_ns for path in job.packed.iterdir()}
        write_packed(job)
        assert written == {path: path.stat().st_mtime_ns for path in job.packed.iterdir()} != {}
    turn = run_turn(job)
    assert (turn.num_images, turn.stages) == (12, {})
    assert turn.seconds > 0 and turn.first_batch_seconds > 0


@pytest.mark.parametrize(
    ("images", "delivered"),
    [
        (torch.zeros(6, 3, 32, 32), "float32 (6, 3, 32, 32)"),
        (torch.zeros(6, 3, 48, 32, dtype=torch.uint8), "uint8 (6, 3, 48, 32)"),
        (np.zeros((5, 32, 32, 3), np.uint8), "uint8 (5, 32, 32, 3)"),
    ],
)
def test_other_images_of_a_peer_fail_its_turn(images: Any, delivered: str, job: Job) -> None:
    with pytest.raises(TurnFailed, match=re.escape(f"gave {delivered}, not uint8 images of 32 x 32 in batches of 6")):
        check_peer_batch(images, job)
    check_peer_batch(torch.zeros(6, 3, 32, 32, dtype=torch.uint8), job)
    check_peer_batch(np.zeros((6, 32, 32, 3), np.uint8), job)


@pytest.mark.filterwarnings("ignore:Exception ignored in.*FileIO")  # timm leaves its files to the collector
@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")  # of torchvision's peer
def test_added_latency_is_slept_at_every_open(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    slow = replace(job, loading=replace(HOW, added_latency_ms=250.0))
    for name in (name for name, peer in PEERS.items() if peer.latency):
        images = next(iter(PEERS[name].function()(slow)))
        check_peer_batch(images, job)
        assert slept == [0.25] * 6
        slept.clear()


@pytest.mark.slow
def test_a_failed_row_of_ours_ends_the_run_and_one_of_others_does_not(index: FileIndex) -> None:
    plan = plan_of(index, replace(HOW, resize_on="worker"), against=("torchvision",))
    gone = replace(plan, job=replace(plan.job, side="", passes=1), sides=("torchvision",))  # its epoch ends too early
    assert "loader ended" in measure(gone, repeats=1)[0].failures["torchvision"]
    with pytest.raises(DataError, match=r"the loader ended \(worker resize\)"):
        measure(replace(gone, sides=(WORKER,)), repeats=1)


def test_all_files_are_read_into_memory_first(index: FileIndex, tmp_path: Path) -> None:
    for number in range(len(index)):
        evict(index.path(number), write_out=True)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "train.beton").write_bytes(b"0" * 100)
    state = read_into_memory(index, HOW, [tmp_path / "copy"])
    assert state == "files in memory" or state.startswith("files from storage, "), "a container may keep nothing"
