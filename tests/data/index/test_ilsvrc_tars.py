"""The tars of ILSVRC2012 as they are downloaded, beside the folders with the same files."""

import gzip
import io
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.errors import ConfigError, DataError
from imagenet_opt.pack.pack import pack
from tests.data.index.tars import Members, tar
from tests.object_server import upload
from tests.pack.packs import SMALL, names_of, read, tree

SYNSETS = ("n01", "n02", "n10")
LABELS = [SYNSETS[(i * i + i // 7) % 3] for i in range(30)]
"""Of the validation images."""
KIT = "ILSVRC2012_devkit_t12"


def shuffled(files: Members) -> list[tuple[str, bytes]]:
    return random.Random(0).sample(files := list(files), len(files))


def kit() -> dict[str, bytes]:
    """The files of the kit, whose numbers of classes are not in the order of the synsets."""
    scipy = pytest.importorskip("scipy.io")
    ids = {"n10": 1, "n01": 2, "n02": 3, "n00": 4}
    rows = [(number, name, f"words, of {name}", np.arange(number)) for name, number in ids.items()]
    array = np.array(rows, [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("children", "O")])
    scipy.savemat(file := io.BytesIO(), {"synsets": array[:, None]}, do_compression=True)
    numbers = "".join(f"{ids[label]}\n" for label in LABELS).encode()
    return {f"{KIT}/data/ILSVRC2012_validation_ground_truth.txt": numbers, f"{KIT}/data/meta.mat": file.getvalue()}


def packed_kit() -> dict[str, bytes]:
    return {f"{KIT}.tar.gz": gzip.compress(tar([(f"{KIT}/readme.txt", b"x" * 10_000), *kit().items()]))}


def kaggle() -> dict[str, bytes]:
    lines = [f"ILSVRC2012_val_{i:08d},{label} 1 2 3 4\n" for i, label in enumerate(LABELS, 1)]
    return {"LOC_val_solution.csv": "".join(["ImageId,PredictionString\n", *lines]).encode()}


def synsets() -> dict[str, bytes]:
    return {"imagenet_2012_validation_synset_labels.txt": "\n".join(LABELS).encode()}


def originals(images_root: Path, root: Path) -> tuple[Path, Path]:
    """The two tars, and a folder with the same files."""
    train = {
        name: [(f"{name}_{i}.JPEG", file.read_bytes()) for i, file in enumerate(sorted(folder.iterdir()))]
        for name, folder in zip(SYNSETS, sorted((images_root / "train").iterdir()), strict=True)
    }
    val = [
        (f"ILSVRC2012_val_{i:08d}.JPEG", file.read_bytes())
        for i, file in enumerate(sorted(images_root.glob("val/*/*"))[:30], 1)
    ]
    outer = tar(shuffled((f"{name}.tar", tar(shuffled(files))) for name, files in train.items()), mtime=1)
    tree(root / "tars", {"ILSVRC2012_img_train.tar": outer, "ILSVRC2012_img_val.tar": tar(shuffled(val))})
    tree(root / "folder/train", {f"{name}/{file}": image for name in train for file, image in train[name]})
    tree(root / "folder", {f"val/{file}": image for file, image in val} | kaggle())
    return root / "tars", root / "folder"


@pytest.mark.parametrize("make_list", [kaggle, synsets, kit, packed_kit])
def test_samples_are_of_folders(make_list: Callable[[], dict[str, bytes]], images_root: Path, tmp_path: Path) -> None:
    tars, folder = originals(images_root, tmp_path)
    tree(tars, make_list())
    for split in ("train", "val"):
        found, expected = (open_index(root, split, tmp_path / "cache") for root in (tars, folder))
        assert found.classes == expected.classes == SYNSETS and len(found.containers) == 1
        assert found.labels.tolist() == expected.labels.tolist() and read(found) == read(expected)
    pack(tars, tmp_path / "packed", SMALL, cache_dir=str(tmp_path / "cache"))
    pack(folder, tmp_path / "same", SMALL, cache_dir=str(tmp_path / "cache"))
    packed, same = (open_index(tmp_path / name, "train", tmp_path / "cache") for name in ("packed", "same"))
    assert names_of(packed) == names_of(same) and read(packed) == read(same)


def test_a_bucket_with_the_tars_is_refused_with_the_remedy(images_root: Path, bucket: str, tmp_path: Path) -> None:
    url = upload(originals(images_root, tmp_path)[0], f"{bucket}/d")
    with pytest.raises(DataError, match=r"n\d\d.tar.*download.* imagenet-opt pack data.root=FOLDER.*\(data.root\)"):
        open_index(url, "train", tmp_path / "cache")
    with pytest.raises(DataError, match=r"30 images without a label.*downloaded.*\(data.root\)"):
        open_index(url, "val", tmp_path / "cache")


CUT = tar([("n01_1.JPEG", b"1" * 2000)])[:2048]
ONE = b"ImageId,PredictionString\nILSVRC2012_val_00000001,n01 1"
REFUSED: list[tuple[dict[str, bytes], str]] = [
    ({"ILSVRC2012_img_train.tar": tar([("n01.tar", CUT), ("n02.tar", CUT)])}, "train.tar/n01.tar, "),
    ({"train/x.tar": tar([("a.tar", tar([("a.txt", b"")])), ("b.tar", b"")])}, "but 1 .txt"),
    ({"train/x.tar": tar([("a.tar", b"1"), ("b.JPEG", b"1")])}, "them or twice 1 .jpeg"),
    ({"train/x.tar": tar([("a.tar", b"1"), ("a.tar", b"1")])}, "them or twice 1 .tar"),
    ({"train/x.tar": tar([("a.tar", b"1")])[:512], "train/y.tar": b""}, "x.tar"),
    ({}, "LOC_val_solution.csv"),
    ({"LOC_val_solution.csv": ONE}, "no class for 1"),
    ({"LOC_val_solution.csv": ONE + b"\nILSVRC2012_val_00000001,n02 1"}, "another class in an earlier line"),
    ({"imagenet_2012_validation_synset_labels.txt": b"n01"}, "no class for 1 of 2 images"),
    ({"imagenet_2012_validation_synset_labels.txt": b"a.JPEG n01\nb.JPEG"}, "line 2: expected FILE CLASS"),
    ({f"{KIT}.tar.gz": b"\x1f\x8b"}, "devkit_t12.tar.gz"),
    ({f"{KIT}/data/ILSVRC2012_validation_ground_truth.txt": b"1\n2"}, "ground_truth.txt"),
]


@pytest.mark.parametrize(("files", "words"), REFUSED, ids=range(len(REFUSED)))
def test_tars_that_are_not_those_of_imagenet_are_one_line(files: dict[str, bytes], words: str, tmp_path: Path) -> None:
    val = tar([(f"ILSVRC2012_val_0000000{i}.JPEG", b"") for i in (1, 2)])
    tree(tmp_path / "d", {"ILSVRC2012_img_val.tar": val} | files)
    with pytest.raises((ConfigError, DataError)) as caught:
        open_index(tmp_path / "d", "train" if any("train" in name for name in files) else "val", tmp_path / "cache")
    assert words in str(caught.value) and "data.root" in str(caught.value) and str(caught.value).isprintable()


def test_damaged_files_of_the_kit_are_refused(tmp_path: Path) -> None:
    files, rng = kit(), random.Random(0)
    tree(tmp_path / "d", {"ILSVRC2012_img_val.tar": tar([("ILSVRC2012_val_00000001.JPEG", b"")]), **files})
    tree(tmp_path / "d", {f"{KIT}/data/ILSVRC2012_validation_ground_truth.txt": b"9"})
    with pytest.raises(ConfigError, match=r"ground_truth.txt .*data\.root"):
        open_index(tmp_path / "d", "val", tmp_path / "cache")
    tree(tmp_path / "d", files)
    for _ in range(100):
        content = bytearray(files[f"{KIT}/data/meta.mat"])
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        tree(tmp_path / "d", {f"{KIT}/data/meta.mat": bytes(content)})
        try:
            open_index(tmp_path / "d", "val", tmp_path / "cache")
        except (ConfigError, DataError) as error:
            assert "data.root" in str(error)
