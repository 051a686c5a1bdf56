"""The list of files: what is found, cached, noticed and told."""

import os
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index import check_same_classes, open_split
from imagenet_opt.errors import ClassMismatch, DatasetNotFound, EmptyClass


def tree(root: Path, *files: str) -> Path:
    for name in files:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    return root


def names(index) -> list[str]:
    return [os.path.relpath(index.path(i), index.folder) for i in range(len(index))]


def test_files_are_found_by_class_in_order(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "d", "train/b/2.JPEG", "train/b/1.jpg", "train/a/ü b.png", "train/a/deep/3.jpeg", "train/a/x.txt"
    )
    index = open_split(root, "train", tmp_path / "cache")
    assert index.classes == ("a", "b")
    assert names(index) == ["a/deep/3.jpeg", "a/ü b.png", "b/1.jpg", "b/2.JPEG"]
    assert index.labels.tolist() == [0, 0, 1, 1]


def test_a_cached_index_is_the_same_and_mapped(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", *(f"train/c{i % 7}/{i}.jpg" for i in range(100)))
    scanned = open_split(root, "train", tmp_path / "cache")
    cached = open_split(root, "train", tmp_path / "cache")
    assert isinstance(cached.names.base, np.memmap)
    assert names(cached) == names(scanned)
    assert cached.labels.tolist() == scanned.labels.tolist()


def test_a_file_more_or_less_is_noticed(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "train/a/1.jpg", "train/b/deep/1.jpg")
    open_split(root, "train", tmp_path / "cache")
    tree(root, "train/b/deep/2.jpg")
    assert len(open_split(root, "train", tmp_path / "cache")) == 3
    (root / "train/a/1.jpg").rename(root / "train/a/9.jpg")
    assert names(open_split(root, "train", tmp_path / "cache"))[0] == "a/9.jpg"


def test_a_class_may_be_a_link(tmp_path: Path) -> None:
    tree(tmp_path / "elsewhere", "1.jpg")
    root = tree(tmp_path / "d", "train/a/1.jpg")
    (root / "train/b").symlink_to(tmp_path / "elsewhere")
    assert names(open_split(root, "train", tmp_path / "cache")) == ["a/1.jpg", "b/1.jpg"]


def test_without_a_place_for_the_cache_it_still_opens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tree(tmp_path / "d", "train/a/1.jpg", "not_a_folder")
    assert len(open_split(root, "train", root / "not_a_folder")) == 1
    assert "data.cache_dir" in caplog.text


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        (["other/a/1.jpg"], DatasetNotFound, ["no train/ under", "data.root", "data.train_folder=."]),
        (["train/1.jpg"], DatasetNotFound, ["no class folders", "data.root"]),
        (["train/a/1.jpg", "train/b/notes.txt"], EmptyClass, ["train/b", "data.root"]),
    ],
)
def test_what_is_no_data_set_is_told(
    files: list[str], error: type[Exception], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        open_split(tree(tmp_path / "d", *files), "train", tmp_path / "cache")
    assert all(word in str(caught.value) for word in words)


def test_different_classes_are_told_with_names(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/c/1.jpg")
    splits = [open_split(root, split, tmp_path / "cache") for split in ("train", "val")]
    with pytest.raises(ClassMismatch, match=r"only in the first: b; only in the second: c"):
        check_same_classes(*splits)
