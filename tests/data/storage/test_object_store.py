"""Batches from objects and from the local folder are equal to the last bit, also while the service fails."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.loader import store_of
from imagenet_opt.errors import BadSample, StorageFailed
from imagenet_opt.object_storage import ObjectStorage
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from tests.conftest import write_images
from tests.data.conftest import MakeLoader, assert_equal, batches, loading
from tests.data.storage.stores import reading
from tests.faulty_proxy import FaultyProxy
from tests.object_server import client, put, upload

pytestmark = pytest.mark.slow

IMAGES = (".JPEG", ".tar")


@pytest.fixture(scope="module")
def images_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, 6 images each, in train/ and val/: few, because each object is a request."""
    return write_images(tmp_path_factory.mktemp("few"), num_classes=3, per_class=6)


@pytest.fixture(scope="module")
def shards(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    pack(images_root, out, PackOptions(shard_mb=0.005))
    return out


@pytest.mark.parametrize(("packed", "workers"), [(False, 2), (True, 0)])
def test_batches_are_those_of_the_folder(
    images_root: Path, shards: Path, bucket: str, loader: MakeLoader, packed: bool, workers: int
) -> None:
    folder = shards if packed else images_root
    options = {"batch_size": 8, "shuffle": "block" if packed else "global", "num_workers": workers}
    expected = batches(loader(folder, **options))
    made = loader(upload(folder, f"{bucket}/in1k"), added_latency_ms=1 if packed else 0, **options)
    assert_equal(batches(made), expected)


def test_shards_on_a_web_server_are_read(shards: Path, bucket: str, object_server: str, tmp_path: Path) -> None:
    upload(shards, bucket)
    name = bucket.removeprefix("s3://")
    for page in client().list_objects_v2(Bucket=name)["Contents"]:
        client().put_object_acl(Bucket=name, Key=page["Key"], ACL="public-read")
    stores = [
        store_of(open_index(root, "train", tmp_path / "cache"), loading(cache_gb=0))
        for root in (f"{object_server}/{name}", shards)
    ]
    rows = np.arange(18)[::-1].copy()
    assert stores[0].read_many(rows) == stores[1].read_many(rows)
    assert stores[0].name(0).startswith(f"{object_server}/{name}/train/shard-00000.tar: class")
    put(f"{bucket}/train/shard-00000.tar", (shards / "train/shard-00000.tar").read_bytes()[::-1])
    client().put_object_acl(Bucket=name, Key="train/shard-00000.tar", ACL="public-read")
    with pytest.raises(StorageFailed, match="replaced after it was listed"):
        stores[0].read_many(rows)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_nothing_is_lost_while_requests_fail(
    images_root: Path, shards: Path, proxy: FaultyProxy, bucket: str, tmp_path: Path, packed: bool
) -> None:
    folder = shards if packed else images_root
    url, local = upload(folder, bucket), open_index(folder, "train", tmp_path / "cache")
    faults: list[str] = []

    def fault(number: int, path: str) -> str:
        if number % 2:
            return ""
        kinds = ("500", "429", "cut", "away", "short" if path.endswith(IMAGES) else "503")
        faults.append(kinds[len(faults) % len(kinds)])
        return faults[-1]

    proxy.fault = fault
    index = open_index(url, "train", tmp_path / "cache")
    faults.clear()
    reader, rows = reading(store_of(index, loading(cache_gb=0))), np.arange(18)[::-1]
    assert reader.read((0, 0), rows).samples == store_of(local, loading(cache_gb=0)).read_many(rows)
    assert len(faults) >= 5
    throttled = faults.count("429") + faults.count("503")
    assert reader.take_events() == {"retries": len(faults), "throttled": throttled, "num_read": 18}
    assert not reader.take_events()


def test_lasting_errors(images_root: Path, proxy: FaultyProxy, bucket: str, loader: MakeLoader, tmp_path: Path) -> None:
    made = loader(upload(images_root, bucket))
    other = partial(open_index, bucket, "train", tmp_path / "other")
    for act, fault, words in (
        (lambda: batches(made), "403", "no right to do that"),
        (other, "403", "no right to do that"),
        (other, "301", "set AWS_REGION to the region of the bucket"),
    ):
        proxy.fault = lambda number, path, fault=fault: fault
        with pytest.raises(StorageFailed, match=words) as raised:
            act()
        assert "\n" not in str(raised.value) and f"{bucket}/train" in str(raised.value)
        assert "(data.root)" in str(raised.value)


def test_a_failing_object_is_a_bad_sample(images_root: Path, proxy: FaultyProxy, bucket: str, tmp_path: Path) -> None:
    index = open_index(upload(images_root, bucket), "train", tmp_path / "cache")
    faults = {"image001.JPEG": "404", "image002.JPEG": "403"}
    proxy.fault = lambda number, path: faults.get(path.rpartition("/")[2], "") if "train/class0" in path else ""
    first, second, third = reading(store_of(index, loading(cache_gb=0))).read((0, 0), np.arange(3)).samples
    assert first == (images_root / "train/class0/image000.JPEG").read_bytes()
    assert isinstance(second, BadSample) and "image001.JPEG: there is no such object" in str(second)
    assert isinstance(third, BadSample) and "image002.JPEG (data.root): 403" in str(third)


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
