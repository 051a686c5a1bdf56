"""Tars of classes and lists of labels of ILSVRC as sources of a pack."""

from pathlib import Path

import pytest

from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.errors import ClassMismatch, ConfigError, DatasetNotFound
from imagenet_opt.pack.pack import pack
from tests.data.index.tars import tar
from tests.pack.packs import SMALL, jpeg, names_of, read, rejected, tree

NAMES = [f"ILSVRC2012_val_0000000{i}.JPEG" for i in range(1, 4)]
LIST = f"{NAMES[0]} n02\nval/{NAMES[1]}   n02\n\n{NAMES[2]}\tn01\n"


def ilsvrc(root: Path) -> dict[str, bytes]:
    """A tar file a class, a flat val/. Returns the images by class/name."""
    images = {f"n0{c}/n0{c}_{i}.JPEG": jpeg(seed=10 * c + i) for c in (1, 2) for i in range(3)}
    for name in ("n01", "n02"):
        files = [(n.partition("/")[2], image) for n, image in images.items() if n.startswith(name)]
        tree(root, {f"train/{name}.tar": tar([*files, ("bad.JPEG", b""), ("notes.txt", b"x")])})
    tree(root, {f"val/{name}": jpeg(seed=50 + i) for i, name in enumerate(NAMES)})
    return images


def test_ilsvrcs_own_layout_is_packed(tmp_path: Path) -> None:
    images = ilsvrc(tmp_path / "data")
    (tmp_path / "labels.txt").write_text("\ufeff" + LIST)  # as some editors begin a text
    assert pack(tmp_path / "data", tmp_path / "out", SMALL, val_labels=tmp_path / "labels.txt").rejected == 2
    train, val = (open_shards(tmp_path / "out" / split) for split in ("train", "val"))
    assert train.classes == val.classes == ("n01", "n02")
    assert dict(zip(names_of(train), read(train), strict=True)) == images
    assert names_of(val) == [f"n02/{NAMES[0]}", f"n02/{NAMES[1]}", f"n01/{NAMES[2]}"]
    assert val.labels.tolist() == [1, 1, 0] and read(val) == [jpeg(seed=50 + i) for i in range(3)]
    assert [f"{tmp_path}/data/train/n02.tar: bad.JPEG", "the file is empty"] in rejected(tmp_path / "out/train")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (None, DatasetNotFound, "3 images and no class folders. Validation images need Kaggle's LOC_val_solution.csv"),
        (LIST.replace(" n02", " n09", 1), ClassMismatch, "has 1 classes that"),
        (LIST.replace("\tn01", ""), ConfigError, f"line 4: expected FILE CLASS, found '{NAMES[2]}'"),
        (LIST.partition("\n")[2], ConfigError, "no class for 1 of 3 images in "),
        (f"{LIST}val/{NAMES[0]} n01", ConfigError, f"line 5: 'val/{NAMES[0]}'"),
        (LIST + "\0\x1b", ConfigError, r"line 5: expected FILE CLASS, found '\x00\x1b'"),
        ("ImageId,x\n" + "y" * 200_000, ConfigError, "line 2: expected FILE CLASS, found 'yyy"),
    ],
)
def test_an_unsuitable_list_of_labels_is_refused(
    text: str | None, error: type[Exception], words: str, tmp_path: Path
) -> None:
    ilsvrc(tmp_path / "data")
    labels = tree(tmp_path, {"labels.txt": text.encode()}) / "labels.txt" if text is not None else None
    with pytest.raises(error) as caught:
        pack(tmp_path / "data", tmp_path / "out", SMALL, val_labels=labels)
    assert words in str(caught.value) and str(caught.value).isprintable() and len(str(caught.value)) < 1000
