"""Splits of tars beside the folder with the same files."""

import json
import logging
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_opt.check.classes import judge_classes
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.tar_index import split_of_tars
from imagenet_opt.data.storage.cache_folder import cache_of
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.errors import DataError, DatasetNotFound, ShardMismatch, StorageFailed
from imagenet_opt.pack.pack import pack
from tests.data.index.tars import shards_of, tar
from tests.faulty_proxy import faulty_proxy
from tests.object_server import put, upload
from tests.pack.packs import SMALL, jpeg, read, tree


def shard(root: Path, name: str, *files: tuple[str, bytes], age: float = 100.0) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar(files))
    os.utime(path, (path.stat().st_mtime - age,) * 2)
    return path


def test_images_and_labels_are_those_of_the_folder_with_the_same_files(images_root: Path, tmp_path: Path) -> None:
    shards_of(tmp_path / "tars/train", images_root / "train")
    folder, tars = (open_index(root, "train", tmp_path) for root in (images_root, tmp_path / "tars"))
    assert tars.labels.tolist() == folder.labels.tolist() and tars.classes == ("0", "1", "2")
    assert read(tars) == read(folder) == read(pickle.loads(pickle.dumps(tars)))
    assert tars.path(0) == f"{tmp_path}/tars/train/s-0000.tar: 000000.jpeg"


def test_the_list_of_tars_is_kept_until_one_of_them_or_a_file_beside_them_changes(
    images_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    root, cache = tmp_path / "d", tmp_path / "cache"
    first, _ = shards_of(root / "train", images_root / "train")
    monkeypatch.setattr("imagenet_opt.data.index.index_cache._CLOCK_STEP_NS", -(10**12))  # as if the tars were old
    assert len(open_index(root, "train", cache)) == len(open_index(root, "train", cache)) == 39
    assert "39 images below" in caplog.text and "as listed on" in caplog.text
    (root / "classnames.txt").write_text("cat\ndog\ncow\n")
    assert open_index(root, "train", cache).classes == ("cat", "dog", "cow")
    first.write_bytes(tar([("a.jpg", b"1"), ("a.cls", b"1")]))
    assert len(open_index(root, "train", cache)) == 21
    first.unlink()
    assert len(open_index(root, "train", cache)) == 20
    (kept,) = (cache / "index").iterdir()
    (kept / "offsets.npy").write_bytes(b"")
    assert len(open_index(root, "train", cache)) == 20


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        (["train/0.tar", "val/0.tar", ".cache/huggingface/x"], "train", "train/0.tar"),
        (["train/0.tar", "validation/0.tar"], "val", "validation/0.tar"),
        (["in1k-train-0000.tar", "in1k-validation-00.tar"], "val", "in1k-validation-00.tar"),
        (["trainer-0.tar", "x_test_1.TAR"], "test", "x_test_1.TAR"),
        (["trainer-0.tar", "x_test_1.TAR"], "train", None),
        (["train-0.tar", "test-0.tar"], "val", None),
        (["train/0.tar", "train/.cache/x"], "train", "train/0.tar"),
        (["train/shard-00000.tar", "train/plan.json"], "train", None),
    ],
)
def test_tars_of_a_split_are_found(names: list[str], split: str, expected: str | None, tmp_path: Path) -> None:
    tree(tmp_path, dict.fromkeys(names, tar([("a.jpg", b"1"), ("a.cls", b"0")])))
    if expected is None:
        with pytest.raises((DatasetNotFound, ShardMismatch)):
            open_index(tmp_path, split, tmp_path / "cache")
    else:
        assert open_index(tmp_path, split, tmp_path / "cache").path(0) == f"{tmp_path}/{expected}: a.jpg"


def test_tars_without_labels_are_classes_unless_their_names_count(bucket: str, tmp_path: Path) -> None:
    for name in ("n02", "n01"):
        shard(tmp_path / "d", f"train/{name}.tar", (f"{name}_2.JPEG", name.encode()), (f"{name}_1.png", b""))
    for root in (tmp_path / "d", upload(tmp_path / "d", f"{bucket}/d")):
        found = open_index(root, "train", tmp_path / "cache", cache_gb=None)
        assert found.classes == ("n01", "n02") and found.labels.tolist() == [0, 0, 1, 1]
        assert read(found) == [b"", b"n01", b"", b"n02"]
    cache = cache_of(found, None)
    assert cache is not None and [cache.read(i) for i in range(4)] == read(found)
    for names in (("s-0",), ("s-0", "s-1"), ("ILSVRC2012_img_val",)):
        for name in names:
            shard(tmp_path / name, f"val/{name}.tar", ("1.jpg", b"1"))
        with pytest.raises(DataError, match=rf"{names[0]}.tar.* has 1 images without a label \(.cls.*data\.root"):
            open_index(tmp_path / names[0], "val", tmp_path / "cache")


def test_a_tar_without_an_end_mark_is_still_being_written_or_told_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagenet_opt.data.index.index_cache._CLOCK_STEP_NS", -(10**12))  # as if the tars were old
    for name, age in (("train", 100.0), ("val", 1.0)):
        path = shard(tmp_path, f"{name}/0.tar", ("a.cls", b"0"), ("a.jpg", b"1" * 512))
        path.write_bytes(path.read_bytes().rstrip(b"\0"))
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    for _ in range(2):
        found = open_index(tmp_path, "train", tmp_path / "cache")
        (counted,) = (each for each in judge_classes(found, found) if each.check == "end marks, train")
        assert "1 of 1 tars" in counted.text and "no end mark, such as 0.tar" in caplog.text
        tell_once.cache_clear()
    assert caplog.text.count("no end mark") == 2
    with pytest.raises(DataError, match=r"val/0.tar, are still being written.*data\.root"):
        open_index(tmp_path, "val", tmp_path / "cache")
    wids = {"__kind__": "wids-shard-index-v1", "shardlist": [{"url": "0.tar", "nsamples": 1}]}
    (tmp_path / "train/index.json").write_text(json.dumps(wids))
    assert not open_index(tmp_path, "train", tmp_path / "cache").open_ends


def test_a_tar_that_grows_while_it_is_read_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard(tmp_path, "train/0.tar", ("a.cls", b"0"), ("a.jpg", b"1"))

    def read_slowly(*arguments: Any) -> Any:
        path.write_bytes(tar([("a.cls", b"0"), ("a.jpg", b"1"), ("b.cls", b"0"), ("b.jpg", b"1" * 9999)]))
        return split_of_tars(*arguments)

    monkeypatch.setattr("imagenet_opt.data.index.tar_index.split_of_tars", read_slowly)
    with pytest.raises(DataError, match=r"train/0.tar, are still being written.*data\.root"):
        open_index(tmp_path, "train", tmp_path / "cache")


@pytest.mark.parametrize("other", ["train/a/1.jpg", "train/1.jpg"])
def test_tars_beside_class_folders_or_images_are_refused(other: str, bucket: str, tmp_path: Path) -> None:
    shard(tmp_path / "d", "train/0.tar", ("a.cls", b"0"), ("a.jpg", b"1"))
    tree(tmp_path / "d", {other: b"1"})
    for root in (tmp_path / "d", upload(tmp_path / "d", f"{bucket}/d")):
        with pytest.raises(DataError, match=r"train holds 1 tars, such as 0.tar, beside 1 .*data\.root"):
            open_index(root, "train", tmp_path / "cache")


def test_tars_below_a_url_are_read_once_and_have_the_samples_of_the_folder(
    images_root: Path, bucket: str, object_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards_of(tmp_path / "tars/train", images_root / "train")
    shard(tmp_path / "tars", "x-test-0.tar", ("a.jpg", b"1"), ("a.cls", b"1"))
    (tmp_path / "tars/classnames.txt").write_text("cat\ndog\ncow")
    url = upload(tmp_path / "tars", f"{bucket}/in1k")
    folder, local = open_index(tmp_path / "tars", "train", tmp_path / "a"), open_index(images_root, "train", tmp_path)
    with faulty_proxy(object_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        found = open_index(url, "train", tmp_path / "b", cache_gb=None)
        assert sum(path.endswith(".tar") for path in proxy.paths) == 2
        again = open_index(url, "train", tmp_path / "b")
        assert sum(path.endswith(".tar") for path in proxy.paths) == 2
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_server)
    for split in (found, again, pickle.loads(pickle.dumps(again))):
        assert split.classes == folder.classes == ("cat", "dog", "cow")
        assert split.labels.tolist() == folder.labels.tolist() and read(split) == read(local)
    cache = cache_of(again, None)
    assert cache is not None and [cache.read(i) for i in range(39)] == read(local)
    test = open_index(url, "test", tmp_path / "b", cache_gb=1e-10)
    assert not cache_of(test, None).holds(np.arange(1)).any() and not list(tmp_path.glob("b/samples/*.spool"))
    assert (test.place, test.containers, read(test)) == (url, ("x-test-0.tar",), [b"1"])
    put(f"{url}/x-test-0.tar", tar([("a.jpg", b"2"), ("a.cls", b"1")]))
    with pytest.raises(StorageFailed, match="replaced"):
        read(test)
    put(f"{url}/valid/0.tar", b"short")
    with pytest.raises(DataError, match=r"valid/0.tar is not a tar file.*data\.root"):
        open_index(url, "val", tmp_path / "b")


def test_a_pack_of_tars_has_their_images_and_no_path_outside(tmp_path: Path) -> None:
    for split in ("train", "val"):
        shard(tmp_path / "d", f"{split}/0.tar", ("a.jpg", image := jpeg()), ("a.cls", b"1"))
    (tmp_path / "d/classnames.txt").write_text("cat\n../../evil/dog")
    pack(tmp_path / "d", tmp_path / "out/p", SMALL, cache_dir=str(tmp_path / "cache"))
    packed = open_index(tmp_path / "out/p", "val", tmp_path / "cache")
    assert read(packed) == [image] and packed.labels.tolist() == [1]
    with tarfile.open(packed.folder / packed.containers[0]) as archive:
        assert archive.getnames()[0] == "evil/dog/a-00000000.jpg"
