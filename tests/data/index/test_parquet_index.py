"""Splits of Parquet files: the same samples as the folder with the same images, and refusals of what is not whole."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.errors import DataError
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from tests.data.parquet.files import LABELS, UNCOMPRESSED, pq, table, write_set
from tests.object_server import put, upload
from tests.pack.packs import read, samples_of

HUB = ("data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet", "data/test-00000.parquet")


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        *((HUB, split, [number]) for split, number in (("train", 0), ("val", 1), ("test", 2))),
        (HUB[::2], "val", [1]),
        (("train/0001.parquet", "train/0000.parquet", "trainer.parquet", "a/train.parquet"), "train", [1, 0]),
        (("train.parquet.tmp", "train.parquet"), "train", [1]),
        (("data/train/0.parquet",), "train", [0]),
        (("x/train/0.parquet",), "x/train", [0]),
    ],
)
def test_names_say_the_split(names: tuple[str, ...], split: str, expected: list[int], tmp_path: Path) -> None:
    for number, name in enumerate(names):
        (file := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table([b"x"] * 2, [number] * 2, names="abc"), file, compression="none")
    assert open_index(tmp_path, split, tmp_path / "cache").labels[::2].tolist() == expected


def test_samples_are_those_of_the_folder(images_root: Path, tmp_path: Path) -> None:
    root = write_set(tmp_path / "hub", images_root, **UNCOMPRESSED["datasets 4.6"])
    for split in ("train", "val"):
        expected = samples_of(open_index(images_root, split, tmp_path / "cache"))
        for _ in ("scanned", "kept"):
            assert samples_of(open_index(root, split, tmp_path / "cache")) == expected


def test_a_changed_file_is_read_anew(images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagenet_opt.data.index.index_cache._CLOCK_STEP_NS", -(10**18))  # files are kept at once
    root, cache = write_set(tmp_path / "hub", images_root, compression="none"), tmp_path / "cache"
    first = open_index(root, "train", cache)
    assert first.origin is not None
    write_set(tmp_path / "other", images_root, compression="none", num_files=3)
    shutil.copy(tmp_path / "other/data/train-00000-of-00003.parquet", root / "data/train-00000-of-00002.parquet")
    assert len(open_index(root, "train", cache)) < len(first)


def test_objects_of_a_bucket_are_read_in_place_or_packed(bucket: str, images_root: Path, tmp_path: Path) -> None:
    plain = upload(write_set(tmp_path / "plain", images_root, compression="none"), f"{bucket}/plain")
    for split in ("train", "val"):
        index = open_index(plain, split, tmp_path / "cache")
        assert samples_of(index) == samples_of(open_index(images_root, split, tmp_path / "cache"))
    put(f"{bucket}/plain/data/validation-00000-of-00002.parquet", b"another object")
    with pytest.raises(DataError, match="replaced"):
        read(index)

    local = write_set(tmp_path / "snappy", images_root, row_group_size=5)
    url = upload(local, f"{bucket}/snappy")
    with pytest.raises(DataError, match=f"imagenet-opt pack data.root={url} out=PACKED"):
        open_index(url, "train", tmp_path / "cache")
    for root, out in ((local, "a"), (url, "b")):
        pack(root, tmp_path / out, PackOptions(shard_mb=0.02), cache_dir=str(tmp_path / "cache"))
    for shard in (tmp_path / "a").rglob("*.tar"):
        assert (tmp_path / "b" / shard.relative_to(tmp_path / "a")).read_bytes() == shard.read_bytes()
    for split, order in (("train", sorted), ("val", list)):  # only train is shuffled
        packed, expected = (open_index(root, split, tmp_path / "cache") for root in (tmp_path / "a", images_root))
        assert order(samples_of(packed)) == order(samples_of(expected))


def test_a_row_without_an_image_is_rejected_by_a_pack(images_root: Path, tmp_path: Path) -> None:
    root, out = write_set(tmp_path / "hub", images_root, num_files=1), tmp_path / "out"
    file = root / "data/train-00000-of-00001.parquet"
    images = pq.read_table(file)["image"].combine_chunks().field("bytes").to_pylist()
    pq.write_table(table([None, *images[1:]], [0] * len(images), names=["class0", "class1", "class2"]), file)
    pack(root, out, PackOptions())
    assert f"{file}: row-0" in (out / "train/rejected.csv").read_text()


@pytest.mark.parametrize("kind", ["ClassLabel", "Value"])
def test_the_chosen_column_of_labels_is_named(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    about = {name: {"_type": kind, "names": ["a", "b", "c"]} for name in ("coarse_label", "label")}
    made = table(coarse_label=[0] * 250).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": about}})}
    )
    pq.write_table(made, tmp_path / "train.parquet", compression="none")
    assert open_index(tmp_path, "train", tmp_path / "cache").labels.tolist() == LABELS
    assert "the labels are those of label, not of coarse_label; to train on others, keep one (datasets" in caplog.text


FIRST = "data/validation-00000-of-00002.parquet"
DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    ("number 0 is missing", lambda root: (root / FIRST).unlink()),
    ("several versions", lambda root: (root / FIRST).rename(root / FIRST.replace("02.", "03."))),
    ("none of this split", lambda root: (root / "data").rename(root / "date")),
    ("keep one of them", lambda root: (root / "val/class0").mkdir(parents=True)),
]


@pytest.mark.parametrize(("words", "damage"), DAMAGE, ids=[words for words, _ in DAMAGE])
def test_incomplete_splits(words: str, damage: Callable[[Path], object], images_root: Path, tmp_path: Path) -> None:
    damage(root := write_set(tmp_path / "hub", images_root, compression="none"))
    with pytest.raises(DataError) as caught:
        open_index(root, "val", tmp_path / "cache")
    assert all(word in str(caught.value) for word in (words, "data.root", str(root)))


def test_rows_are_compared_with_the_card(images_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write_set(tmp_path / "hub", images_root, compression="none")
    card = "---\ndataset_info:\n  splits:\n  - name: {}\n    num_bytes: 1.5\n    num_examples: {}\n---\n"
    (root / "README.md").write_text(card.format("train", 39))
    open_index(root, "train", tmp_path / "cache")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    (root / "README.md").write_text(card.format("validation", 40))
    open_index(root, "val", tmp_path / "cache")
    assert "39 rows" in caplog.text and "says 40" in caplog.text
