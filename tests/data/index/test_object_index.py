"""The index of objects has the order of the local folder, is listed once, and names mistakes in one line."""

import json
import logging
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.layout import root_of, split_url
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.split import Split, subset
from imagenet_opt.data.loader import store_of
from imagenet_opt.errors import ConfigError, DataError, DatasetNotFound, EmptyClass, ShardMismatch, StorageFailed
from tests.conftest import loading, write_images
from tests.faulty_proxy import faulty_proxy
from tests.object_server import client, put, upload
from tests.pack import packs

NAMES = (
    "train/b/2.jpg", "train/b/10.JPEG", "train/b/sub/1.png", "train/b/readme.txt", "train/a/é #1%41?.jpeg",
    "train/a.b/1.jpg", "train/B/x y+z&=.webp", "train/B/~'().JPG", "train/notes.jpg",
)  # fmt: skip


@pytest.fixture(scope="module")
def images_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, 6 images each: few, because each object is a request."""
    return write_images(tmp_path_factory.mktemp("few"), num_classes=3, per_class=6)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return packs.tree(tmp_path / "tree", {name: name.encode() for name in NAMES})


def kept_in(split: Split) -> Path:
    assert split.origin is not None
    return split.origin.about.parent


def test_the_order_is_that_of_the_folder(tree: Path, bucket: str, tmp_path: Path) -> None:
    put(f"{bucket}/data/train/b/", b"")  # consoles make such objects for folders
    index = open_index(upload(tree, f"{bucket}/data"), "train", tmp_path / "cache")
    local = open_index(tree, "train", tmp_path / "cache")
    assert index.classes == local.classes == ("B", "a", "a.b", "b") and index.others == {".txt": 1}
    assert packs.names_of(index) == packs.names_of(local) and packs.samples_of(index) == packs.samples_of(local)
    assert packs.read(index) == [f"train/{name}".encode() for name in packs.names_of(index)]


def test_objects_are_listed_once(
    images_root: Path, bucket: str, object_server: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    url = upload(images_root, bucket)
    with faulty_proxy(object_server) as proxy, caplog.at_level(logging.INFO):
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        first = open_index(url, "train", tmp_path)
        listed, looks_for_shards = len(proxy.paths), 2
        put(f"{url}/train/class0/new.JPEG", b"")
        the_put = 1
        second = open_index(url, "train", tmp_path)
        assert len(proxy.paths) == listed + the_put + looks_for_shards
        assert len(first) == len(second) == 18
        (line,) = [record.getMessage() for record in caplog.records if "as listed on" in record.getMessage()]
        folder = line.rpartition(" ")[2]
        assert line.startswith(f"18 images below {url}/train, as listed on 20") and Path(folder).is_dir()
        shutil.rmtree(folder)
        assert len(open_index(url, "train", tmp_path)) == 19


def test_without_a_server_the_error_names_the_address(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:hunter2@127.0.0.1:1")
    monkeypatch.setattr("imagenet_opt.data.index.object_index.OPENING_SECONDS", 0.5)
    with pytest.raises(StorageFailed) as raised:
        open_index(f"{bucket}/x", "train", tmp_path)
    assert str(raised.value).startswith(f"cannot read {bucket}/x/train (data.root): no connection")
    assert "check the network and AWS_ENDPOINT_URL=127.0.0.1:1, then run" in str(raised.value)
    assert "hunter2" not in str(raised.value) + caplog.text
    assert [record.getMessage().rpartition("; ")[2] for record in caplog.records] == ["retrying for up to 0.5 s"]


def test_pickle_sends_no_columns_of_a_whole_index(images_root: Path, packed: Path, bucket: str, tmp_path: Path) -> None:
    few = np.array([3, 17, 3])
    upload(packed, f"{bucket}/packed/train")
    for url in (upload(images_root, bucket), f"{bucket}/packed"):
        index = open_index(url, "train", tmp_path)
        sent = pickle.dumps(index)
        assert index.names.tobytes() not in sent
        copy = pickle.loads(sent)
        chosen = pickle.loads(pickle.dumps(subset(index, few)))
        stores = store_of(index, loading()), store_of(copy, loading()), store_of(chosen, loading())
        assert stores[0].read_many(few) == stores[1].read_many(few) == stores[2].read_many(np.arange(3))
        assert [chosen.path(i) for i in range(3)] == [index.path(i) for i in few.tolist()]


def test_a_worker_never_takes_a_newer_listing(images_root: Path, bucket: str, tmp_path: Path) -> None:
    url = upload(images_root, bucket)
    index = open_index(url, "train", tmp_path)
    sent = pickle.dumps(index)
    shutil.rmtree(kept_in(index))
    put(f"{url}/train/class0/new.JPEG", b"")
    assert len(open_index(url, "train", tmp_path)) == 19
    with pytest.raises(DataError, match="removed or replaced; run the same command again"):
        pickle.loads(sent)


def test_a_damaged_cache_is_made_again(images_root: Path, packed: Path, bucket: str, tmp_path: Path) -> None:
    url, pack = upload(images_root, f"{bucket}/images"), upload(packed, f"{bucket}/pack/train").removesuffix("/train")
    index, shards = open_index(url, "train", tmp_path), open_index(pack, "train", tmp_path)
    sizes, labels = index.sizes.tolist(), shards.labels.tolist()
    (kept_in(index) / "sizes.npy").write_bytes(b"")
    np.save(kept_in(shards) / "labels.npy", np.array(labels[::-1], np.int32))
    assert open_index(url, "train", tmp_path).sizes.tolist() == sizes
    assert labels != labels[::-1] and open_index(pack, "train", tmp_path).labels.tolist() == labels


def test_new_shards_have_a_new_index(packed: Path, copy: Path, bucket: str, tmp_path: Path) -> None:
    url = bucket
    upload(packed, f"{url}/train")
    open_index(url, "train", tmp_path)
    about = json.loads((copy / "index.json").read_text())
    put(f"{url}/train/index.json", json.dumps(about | {"classes": ["x", "y", "z"]}).encode())
    assert open_index(url, "train", tmp_path).classes == ("x", "y", "z")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("labels.npy", b"other", "labels.npy is not the file of its index.json"),
        ("shard-00001.tar", b"short", "shard-00001.tar in {url} has 5 bytes; its index.json expects"),
        ("index.json", None, "is no finished pack: it has no index.json"),
        ("index.json", b"{}", "index.json is damaged: format: Field required"),
    ],
)
def test_a_broken_pack(packed: Path, bucket: str, tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    url = upload(packed, f"{bucket}/in1k/train")
    if content is None:
        client().delete_object(Bucket=bucket.removeprefix("s3://"), Key=f"in1k/train/{name}")
    else:
        put(f"{url}/{name}", content)
    with pytest.raises(ShardMismatch) as raised:
        open_index(f"{bucket}/in1k", "train", tmp_path)
    message = str(raised.value)
    assert words.format(url=url) in message and f"(data.root={bucket}/in1k); upload" in message
    assert "\n" not in message


def test_mistakes_are_one_line(images_root: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def message(url: str, kind: type[Exception], split: str = "train") -> str:
        with pytest.raises(kind) as raised:
            open_index(url, split, tmp_path)
        assert "\n" not in str(raised.value) and "data.root" in str(raised.value)
        return str(raised.value)

    upload(images_root, f"{bucket}/in1k")
    assert "no such bucket" in message("s3://no-such-bucket/in1k", StorageFailed)
    put(f"{bucket}/in1k/valid/shard-0000.parquet", b"")
    assert "valid/shard-0000.parquet has 0 bytes and no footer" in message(f"{bucket}/in1k", DataError, "valid")
    put(f"{bucket}/flat/val/1.JPEG", b"")
    assert "read in folders: download" in message(f"{bucket}/flat", DatasetNotFound, "val")
    put(f"{bucket}/in1k/train/empty/readme.txt", b"")
    assert message(f"{bucket}/in1k", EmptyClass).startswith(f"no images in {bucket}/in1k/train/empty")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / "absent"))
    assert "no credentials were found" in message(f"{bucket}/in1k", StorageFailed)


def test_the_package_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r'data.root=s3://b/c/train needs .* pip install "imagenet-opt\[cloud\]"'):
        open_index("s3://b/c", "train", tmp_path)


def test_urls_keep_their_slashes() -> None:
    assert root_of("s3://a/b") == "s3://a/b" and root_of("/a/b") == Path("/a/b") and root_of(None) is None
    for root in ("s3://a/b", "s3://a/b/"):
        assert split_url(root, "train") == "s3://a/b/train"
        assert split_url(root, ".") == "s3://a/b" and split_url(root, "../c") == "s3://a/c"
