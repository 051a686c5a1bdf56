"""Batches from objects and from the local folder are equal to the last bit, also while the service fails."""

import os
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.loader import open_index, store_of
from imagenet_opt.errors import BadSample, StorageFailed
from imagenet_opt.object_storage import ObjectStorage
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from tests.conftest import write_images
from tests.data.conftest import MakeLoader, assert_equal, batches, loading
from tests.data.storage.stores import reading
from tests.faulty_proxy import FaultyProxy
from tests.object_server import client, put, upload
from tests.processes import on_ranks

IMAGES = (".JPEG", ".tar")


@pytest.fixture(scope="module")
def images_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, 8 images each, in train/ and val/: few, because each object is a request."""
    return write_images(tmp_path_factory.mktemp("few"), num_classes=3, per_class=8)


@pytest.fixture(scope="module")
def shards(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    pack(images_root, out, PackOptions(shard_mb=0.02))
    return out


@pytest.mark.parametrize("packed", [False, True])
def test_batches_are_those_of_the_folder(
    images_root: Path, shards: Path, bucket: str, loader: MakeLoader, packed: bool
) -> None:
    folder = shards if packed else images_root
    options = {"batch_size": 8, "shuffle": "block" if packed else "global", "num_workers": 2}
    expected = batches(loader(folder, **options))
    made = loader(upload(folder, f"{bucket}/in1k"), added_latency_ms=1 if packed else 0, **options)
    for epoch in (1, 2, 1):
        actual = batches(made, epoch=epoch)
    assert_equal(actual, expected)
    assert made.buffers.num_made == 3 * 3 * 8  # workers count in memory that they share with this process


def test_shards_on_a_web_server_are_read_by_ranges(
    shards: Path, bucket: str, object_server: str, tmp_path: Path
) -> None:
    upload(shards, bucket)
    name = bucket.removeprefix("s3://")
    for page in client().list_objects_v2(Bucket=name)["Contents"]:
        client().put_object_acl(Bucket=name, Key=page["Key"], ACL="public-read")
    stores = [
        store_of(open_index(root, "train", tmp_path / "cache"), loading(cache_gb=0))
        for root in (f"{object_server}/{name}", shards)
    ]
    rows = np.arange(24)[::-1].copy()
    assert stores[0].read_many(rows) == stores[1].read_many(rows)
    assert stores[0].name(0).startswith(f"{object_server}/{name}/train/shard-00000.tar: class")
    put(f"{bucket}/train/shard-00000.tar", (shards / "train/shard-00000.tar").read_bytes()[::-1])
    client().put_object_acl(Bucket=name, Key="train/shard-00000.tar", ACL="public-read")
    with pytest.raises(StorageFailed, match="replaced after it was listed"):
        stores[0].read_many(rows)


def test_a_fork_of_a_process_with_a_client_is_refused(images_root: Path, bucket: str, tmp_path: Path) -> None:
    """The client's requests would wait forever."""
    store = store_of(open_index(upload(images_root, bucket), "train", tmp_path / "cache"), loading(cache_gb=0))
    (error,) = on_ranks(lambda rank: store.read_many(np.array([0])), num_ranks=1)
    assert isinstance(error, StorageFailed) and f"forked from process {os.getpid()}, which had opened" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "packed"), [("500", True), ("429", False), ("cut", True), ("away", False), ("short", True)]
)
def test_nothing_is_lost_while_requests_fail(
    images_root: Path, shards: Path, proxy: FaultyProxy, bucket: str, tmp_path: Path, fault: str, packed: bool
) -> None:
    folder = shards if packed else images_root
    url = upload(folder, bucket)
    local = open_index(folder, "train", tmp_path / "cache")
    also_of_index = fault != "short"
    proxy.fault = lambda number, path: fault * (number % 3 == 1 and (also_of_index or path.endswith(IMAGES)))
    index = open_index(url, "train", tmp_path / "cache")
    before, reader = proxy.num_faults, reading(store_of(index, loading(cache_gb=0)))
    result = reader.read((0, 0), index.sizes.argsort())
    proxy.fault = lambda number, path: ""
    retries = proxy.num_faults - before
    assert reader.take_failures() == (retries, retries if fault in ("429", "503") else 0)
    assert reader.take_failures() == (0, 0)
    assert result.samples == store_of(local, loading(cache_gb=0)).read_many(index.sizes.argsort())
    assert proxy.num_faults > 0


@pytest.mark.parametrize(("packed", "workers"), [(False, 1), (True, 0)])
def test_a_replaced_object_ends_the_run(
    images_root: Path, shards: Path, bucket: str, loader: MakeLoader, packed: bool, workers: int
) -> None:
    made = loader(upload(shards if packed else images_root, bucket), num_workers=workers)
    name = "shard-00000.tar" if packed else "class0/image000.JPEG"
    file = (shards if packed else images_root) / "train" / name
    put(f"{bucket}/train/{name}", file.read_bytes()[::-1])
    with pytest.raises(StorageFailed) as raised:
        batches(made)
    message = str(raised.value)
    assert "\n" not in message
    assert f"{bucket}/train/{name} (data.root): 412" in message and "replaced after it was listed" in message


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("403", "no right to do that"),
        ("301", "set AWS_REGION to the region of the bucket"),
    ],
)
def test_errors_that_stay_end_the_run(
    images_root: Path, proxy: FaultyProxy, bucket: str, loader: MakeLoader, tmp_path: Path, fault: str, words: str
) -> None:
    made = loader(upload(images_root, bucket))
    proxy.fault = lambda number, path: fault
    for act in (lambda: batches(made), lambda: open_index(bucket, "train", tmp_path / "other")):
        with pytest.raises(StorageFailed, match=words) as raised:
            act()
        assert "\n" not in str(raised.value) and f"{bucket}/train" in str(raised.value)
        assert "(data.root)" in str(raised.value)


@pytest.mark.parametrize(
    ("fault", "words"), [("404", "image001.JPEG: there is no such object"), ("403", "image001.JPEG (data.root): 403")]
)
def test_an_object_that_cannot_be_read_is_a_bad_sample(
    images_root: Path, proxy: FaultyProxy, bucket: str, tmp_path: Path, fault: str, words: str
) -> None:
    index = open_index(upload(images_root, bucket), "train", tmp_path / "cache")
    proxy.fault = lambda number, path: fault if path.endswith("class0/image001.JPEG") else ""
    first, second = reading(store_of(index, loading(cache_gb=0))).read((0, 0), np.arange(2)).samples
    assert first == (images_root / "train/class0/image000.JPEG").read_bytes()
    assert isinstance(second, BadSample) and words in str(second)


def test_an_object_whose_name_cannot_be_read_is_named_with_a_remedy(bucket: str, tmp_path: Path) -> None:
    put(f"{bucket}/train/a//x.jpg", b"x")
    with pytest.raises(StorageFailed, match=r"data\.root.*train/a//x\.jpg.*rename or remove"):
        open_index(bucket, "train", tmp_path)


def test_without_a_strong_etag_the_time_of_the_last_change_marks_an_object(proxy: FaultyProxy, bucket: str) -> None:
    put(f"{bucket}/x.jpg", b"x")
    proxy.fault = lambda number, path: "weak"
    storage = ObjectStorage(bucket, "data.root")
    ((found,),) = storage.objects()
    assert found == storage.head("x.jpg") and storage.read("x.jpg", etag=found.etag) == b"x"
    word, seconds = found.etag.split()
    with pytest.raises(StorageFailed, match="replaced after it was listed"):
        storage.read("x.jpg", etag=f"{word} {int(seconds) - 1}")
