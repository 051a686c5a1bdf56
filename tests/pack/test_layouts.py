"""Archives and lists of labels of ILSVRC as sources, sound and damaged."""

import io
import tarfile
from pathlib import Path

import pytest

from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.errors import ClassMismatch, ConfigError, DataError, DatasetNotFound
from imagenet_opt.pack.pack import pack
from tests.data.index.tars import header
from tests.pack.packs import SMALL, jpeg, names_of, read, rejected, tree


def archive(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def ilsvrc(root: Path) -> dict[str, bytes]:
    """A tar file a class, a flat val/. Returns the images by class/name."""
    images = {
        f"{name}/{name}_{i}.JPEG": jpeg(seed=10 * c + i) for c, name in enumerate(("n01", "n02")) for i in range(3)
    }
    for name in ("n01", "n02"):
        archive(root / f"train/{name}.tar", {n.split("/")[1]: e for n, e in images.items() if n.startswith(name)})
    tree(root, {f"val/ILSVRC2012_val_0000000{i}.JPEG": jpeg(seed=50 + i) for i in range(1, 4)})
    return images


KAGGLE = (
    "ImageId,PredictionString\nILSVRC2012_val_00000002,n02 1 2 3 4 n02 5 6 7 8\n"
    "ILSVRC2012_val_00000001,n02 9 9 9 9\nILSVRC2012_val_00000003,n01 1 1 1 1\n"
)


PLAIN = (
    "ILSVRC2012_val_00000001.JPEG n02\nval/ILSVRC2012_val_00000002.JPEG   n02\n\nILSVRC2012_val_00000003.JPEG\tn01\n"
)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("LOC_val_solution.csv", KAGGLE),
        ("elsewhere/labels.txt", "\ufeff" + PLAIN),  # as some editors begin a text
    ],
)
def test_ilsvrcs_own_layout_is_packed(place: str, text: str, tmp_path: Path) -> None:
    images = ilsvrc(tmp_path / "data")
    listed = tree(tmp_path, {place: text.encode()}) / place
    labels = listed if "elsewhere" in place else None
    pack(tmp_path / "data", tmp_path / "packs/out", SMALL, val_labels=labels)
    train, val = (open_shards(tmp_path / "packs/out" / split) for split in ("train", "val"))
    assert train.classes == val.classes == ("n01", "n02")
    assert dict(zip(names_of(train), read(train), strict=True)) == images
    assert names_of(val) == [
        "n02/ILSVRC2012_val_00000001.JPEG",
        "n02/ILSVRC2012_val_00000002.JPEG",
        "n01/ILSVRC2012_val_00000003.JPEG",
    ]
    assert val.labels.tolist() == [1, 1, 0]
    assert read(val) == [jpeg(seed=50 + i) for i in range(1, 4)]


def test_a_bad_member_of_an_archive_is_listed_with_the_archive(tmp_path: Path) -> None:
    ilsvrc(tmp_path / "data")
    tree(tmp_path / "data", {"LOC_val_solution.csv": KAGGLE.encode()})
    archive(tmp_path / "data/train/n02.tar", {"good.JPEG": jpeg(), "bad.JPEG": b"", "notes.txt": b"x"})
    assert pack(tmp_path / "data", tmp_path / "out", SMALL).rejected == 1
    assert rejected(tmp_path / "out/train")[1:] == [[f"{tmp_path}/data/train/n02.tar: bad.JPEG", "the file is empty"]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not a tar file at all" * 100, "is not a tar file"),
        (header("x\x1b[2J\n.JPEG", kind=tarfile.LNKTYPE, linkname="y") + bytes(1024), r"'x\x1b[2J\n.JPEG'"),
        (header("x.JPEG", 4000) + bytes(1000), "claims 4000 bytes: it was cut off"),
        (header("x.JPEG"), "still being written"),  # without an end mark
        (header("x.txt") + bytes(1024), "no images but 1 .txt"),
    ],
)
def test_an_archive_that_is_cut_short_or_has_no_images_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    ilsvrc(tmp_path / "data")
    (tmp_path / "data/train/n02.tar").write_bytes(content)
    with pytest.raises(DataError) as caught:
        pack(tmp_path / "data", tmp_path / "out", SMALL, cache_dir=str(tmp_path / "cache"))
    message = str(caught.value)
    assert words in message and "n02.tar" in message and "data.root" in message and message.isprintable()


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (
            None,
            DatasetNotFound,
            "holds 3 images and no class folders. Validation images need Kaggle's LOC_val_solution.csv",
        ),
        (KAGGLE.replace("n02 9", "n09 9"), ClassMismatch, "has 1 classes that"),
        (PLAIN.replace("\tn01", ""), ConfigError, "line 4: expected FILE CLASS, found 'ILSVRC2012_val_00000003.JPEG'"),
        (PLAIN.partition("\n")[2], ConfigError, "no class for 1 of 3 images in "),
        (PLAIN + "val/ILSVRC2012_val_00000001.JPEG n01", ConfigError, "line 5: 'val/ILSVRC2012_val_00000001.JPEG'"),
        (PLAIN + "\0\x1b", ConfigError, r"line 5: expected FILE CLASS, found '\x00\x1b'"),
        ("ImageId,x\n" + "y" * 200_000, ConfigError, "line 2: expected FILE CLASS, found 'yyy"),
    ],
)
def test_an_unsuitable_list_of_labels_is_refused(
    text: str | None, error: type[Exception], words: str, tmp_path: Path
) -> None:
    ilsvrc(tmp_path / "data")
    labels = None
    if text is not None:
        labels = tree(tmp_path, {"labels.txt": text.encode()}) / "labels.txt"
    with pytest.raises(error) as caught:
        pack(tmp_path / "data", tmp_path / "out", SMALL, val_labels=labels)
    assert words in str(caught.value)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000
