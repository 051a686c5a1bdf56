"""The index of a folder: files, cache, changes, and errors."""

import errno
import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.split import Split, with_classes_of
from imagenet_opt.errors import DataError, DatasetNotFound, EmptyClass
from tests.pack.packs import names_of

PACKAGE = "imagenet_opt.data.index"


def tree(root: Path, *files: str) -> Path:
    for name in files:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    return root


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the index, a minute late: folders that were made by a test have not just changed."""
    clock = SimpleNamespace(time_ns=lambda: time.time_ns() + 60 * 10**9, perf_counter=time.perf_counter)
    monkeypatch.setattr(f"{PACKAGE}.index_cache.time", clock)
    return clock


def opened(root: Path) -> Split:
    return open_index(root, "train", root.parent / "cache")


def test_added_and_renamed_files_are_noticed(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "train/a/1.jpg", "train/b/deep/1.jpg")
    opened(root)
    tree(root, "train/b/deep/2.jpg")
    assert len(opened(root)) == 3
    (root / "train/a/1.jpg").rename(root / "train/a/9.jpg")
    assert names_of(opened(root))[0] == "a/9.jpg"


@pytest.mark.parametrize("late", ["train/b/deep/2.jpg", "train/c/1.jpg"])
def test_a_file_added_during_a_listing_is_found(late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "d", "train/a/1.jpg", "train/b/deep/9.jpg")
    with monkeypatch.context() as patch:  # the names of a folder are looked at once it is listed
        patch.setattr(f"{PACKAGE}.folder_index.is_image", lambda name: name != "9.jpg" or bool(tree(root, late)))
        assert len(opened(root)) == 2
    assert len(opened(root)) == 3


@pytest.mark.parametrize(("age", "num_cached"), [(1.5, 0), (60, 1)])
def test_a_fresh_folder_is_not_cached(age: float, num_cached: int, tmp_path: Path, clock: SimpleNamespace) -> None:
    """A file added within the same step of the file system's clock leaves the folder's times as they were."""
    root = tree(tmp_path / "d", "train/a/1.jpg")
    clock.time_ns = lambda: (root / "train/a").stat().st_ctime_ns + int(age * 1e9)
    opened(root)
    assert len(list(tmp_path.glob("cache/index/*"))) == num_cached


def test_a_replaced_data_set_with_old_times_is_listed_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As tar --mtime and rsync -a make folders."""
    caplog.set_level(logging.INFO)
    for version, num in enumerate((1, 2)):
        root = tree(tmp_path / f"v{version}", *(f"train/a/{i}{version}.jpg" for i in range(num)))
        for folder in (root / "train/a", root / "train"):
            os.utime(folder, (1e9, 1e9))
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        root.rename(tmp_path / "d")
        index = opened(tmp_path / "d")
        assert all(os.path.exists(index.path(i)) for i in range(len(index))) and len(index) == num
    assert "as listed on" not in caplog.text
    opened(tmp_path / "d")
    assert f"2 images below {tmp_path}/d/train, as listed on" in caplog.text


def test_a_cache_that_cannot_be_written_is_only_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tree(tmp_path / "d", "train/a/1.jpg", "not_a_folder")
    assert len(open_index(root, "train", root / "not_a_folder")) == 1
    assert "data.cache_dir" in caplog.text


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        (["other/a/1.jpg"], DatasetNotFound, ["no train/ under", "data.root", "data.train_folder=."]),
        (["cat/1.jpg", "dog/1.jpg"], DatasetNotFound, ["split_folder.py", "data.root", "data.train_folder=."]),
        (["in1k/train/a/1.jpg"], DatasetNotFound, ["Found in1k/train/; did you mean data.root=", "/d/in1k?"]),
        (["train/1.jpg"], DatasetNotFound, ["train holds 1 images and no class folders", "imagenet-opt pack"]),
        (["train/a/1.jpg", "train/b/notes.txt"], EmptyClass, ["train/b, but 1 .txt", "data.root"]),
        (["ILSVRC2012_img_val.tar"], DatasetNotFound, ["d holds 1 tars", "/d/train/ and ", "data.root"]),
        (["imagenet.tar.gz"], DatasetNotFound, ["d holds 1 files: 1 .gz; unpack", "data.root"]),
        (["data/images.parquet"], DatasetNotFound, ["holds Parquet files, such as images", "data.train_folder"]),
    ],
)
def test_no_data_set_is_explained(files: list[str], error: type[Exception], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(error) as caught:
        opened(tree(tmp_path / "d", *files))
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("root", [".", "ILSVRC", "ILSVRC/Data", "ILSVRC/Data/CLS-LOC"])
def test_kaggles_imagenet_is_read_as_unpacked(root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "d/ILSVRC/Data/CLS-LOC"
    tree(place, "train/n1/n1_7.JPEG", "train/n2/n2_3.JPEG", "val/v_2.JPEG", "val/v_1.JPEG")
    listed = "ImageId,PredictionString\nv_1,n2 9 9 9 9 n2 1 1 1 1\nv_2,n1 1 1 1 1\nv_3,n1 2 2 2 2\n"
    (tmp_path / "d/LOC_val_solution.csv").write_text(listed)
    train, val = (open_index(tmp_path / "d" / root, split, tmp_path / "cache") for split in ("train", "val"))
    assert [val.path(i) for i in range(2)] == [f"{place}/val/v_1.JPEG", f"{place}/val/v_2.JPEG"]
    assert (train.place, train.classes, train.labels.tolist()) == (f"{place}/train", ("n1", "n2"), [0, 1])
    assert with_classes_of(train, val).labels.tolist() == [1, 0]
    assert "lacks 1 of the 3 images" in caplog.text


@pytest.mark.parametrize(("name", "remedy"), [("mine.zip", "Unpack"), ("train-0.tar", "data.root={}")])
def test_a_file_as_root_is_called_a_file(name: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound) as caught:
        opened(tree(tmp_path, name) / name)
    assert "is a file" in str(caught.value) and remedy.format(tmp_path.resolve()) in str(caught.value)


def test_images_are_found_by_class_and_others_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    root = tree(tmp_path / "d", "train/b/2.JPEG", "train/b/1.jpg", "train/a/ü b.png", "train/a/deep/3.gif")
    tree(root, *(f"train/a/1{ending}" for ending in (".jfif", ".JPE", ".heic", ".avif", "")))
    tree(root, "train/a/._1.jpg", "train/a/deep/2.HEIC", "train/0.jpg")
    expected = {".heic": 2, ".avif": 1, "no ending": 1, "._*": 1, "images outside of class folders": 1}
    for index in (opened(root), opened(root)):
        assert names_of(index) == ["a/1.JPE", "a/1.jfif", "a/deep/3.gif", "a/ü b.png", "b/1.jpg", "b/2.JPEG"]
        assert index.classes == ("a", "b") and index.labels.tolist() == [0, 0, 0, 0, 1, 1] and index.others == expected
    assert isinstance(index.names.base, np.memmap) and "left out are other files: 2 .heic" in caplog.text


def forge(kept: Path, **columns: np.ndarray) -> None:
    """Replace columns of a cache, whose checksums are right again."""
    about = json.loads((kept / "about.json").read_text())
    del about["crc32"]
    for name, column in columns.items():
        np.save(kept / f"{name}.npy", column)
        about["columns"][name] = zlib.crc32((kept / f"{name}.npy").read_bytes())
    (kept / "about.json").write_text(json.dumps(about | {"crc32": zlib.crc32(json.dumps(about).encode())}))


DAMAGE: list[Callable[[Path, Path], object]] = [
    lambda kept, _: np.save(kept / "labels.npy", np.array([1, 0, 0], np.int32)),
    lambda kept, _: forge(kept, labels=np.array([0, 1, 2], np.int32)),
    lambda kept, _: forge(kept, name_offsets=np.array([0, 2**62, -(2**62), 21])),
    lambda kept, _: forge(kept, labels=np.array([None] * 3)),
    lambda kept, _: (kept / "about.json").write_text("[" * 100_000),
    lambda kept, _: os.truncate(kept / "names.npy", 130),
    lambda kept, root: (kept / "about.json").write_text(
        (kept / "about.json").read_text().replace(f"{root}/train", f"{root}/trail", 1)
    ),
]


@pytest.mark.parametrize("damage", DAMAGE, ids=["swapped", "labels", "offsets", "pickled", "deep", "cut", "place"])
def test_a_damaged_cache_is_replaced(damage: Callable[[Path, Path], object], tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "train/a/1.jpg", "train/b/1.jpg", "train/b/2.jpg")
    expected = names_of(opened(root))
    damage(*(tmp_path / "cache/index").iterdir(), root)
    index = opened(root)
    assert index.place == str(root / "train") and names_of(index) == expected and index.labels.tolist() == [0, 1, 1]


def test_a_cache_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "train/a/1234567.jpg", "train/a/89..a.jpg")
    opened(root)
    (kept,) = tmp_path.glob("cache/index/*")
    for outside in (b"../../secret!", b"/etc/passwd-!"):
        forge(kept, names=np.frombuffer(outside + b"a/89..a.jpg", np.uint8))
        index = opened(root)
        with pytest.raises(DataError, match=r"outside of this folder; empty data\.cache_dir/index"):
            index.path(0)
        assert index.path(1) == str(root / "train/a/89..a.jpg")


def test_links_give_no_image_a_second_label(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tree(tmp_path / "d", "train/a/deep/1.jpg", "class/1.jpg")
    for link, target in {"c": "class", "a/all": "train", "a/deep/up": "train/a", "a/c": "class"}.items():
        (root / "train" / link).symlink_to(root / target)
    assert names_of(opened(root)) == ["a/deep/1.jpg", "c/1.jpg"]
    assert f"{root}/train/a/" in caplog.text and "is not followed" in caplog.text and "data.root" in caplog.text


@pytest.mark.parametrize(
    ("first", "target", "shares"),
    [
        *(("far", "train/a", "train"), ("far", ".", "train")),
        *(("far", "far/below", "train/x"), ("far", "far", "train/x"), ("far/below", "far", "train/x")),
    ],
)
def test_a_link_to_images_of_another_class_is_refused(tmp_path: Path, first: str, target: str, shares: str) -> None:
    root = tree(tmp_path / "d", "train/a/deep/1.jpg", "far/below/1.jpg", "near/1.jpg")
    for name, place in (("n", "near"), ("x", first), ("y", target)):
        (root / "train" / name).symlink_to(root / place)
    with pytest.raises(DataError, match=rf"/y is a link to .*, which has images of {root}/{shares} too.*data\.root"):
        opened(root)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "d", "train/a/1.jpg", "train/a/deep/1.jpg")
    scandir = os.scandir

    def refuse(folder: str | Path) -> Any:  # as the system does for all but root
        if os.path.basename(folder) == "deep":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cannot list .*a/deep: Permission denied; make it readable \(data\.root\)"):
        opened(root)
