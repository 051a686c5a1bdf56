"""Parquet files as datasets, pyarrow and others write them: images in place, labels, and refusals."""

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.split import Split, subset
from imagenet_opt.errors import ConfigError, DataError
from imagenet_opt.pack.source import read_compressed
from tests.data.parquet.files import IMAGES, LABELS, NAMES, UNCOMPRESSED, pa, pq, table
from tests.pack.packs import read


def opened(folder: Path) -> Split:
    return open_index(folder, "train", folder / "cache", to_pack=True)


def written(folder: Path, *tables: "pa.Table", **options: Any) -> Split:
    """The split of these files."""
    for i, made in enumerate(tables):
        pq.write_table(made, folder / f"train-{i}.parquet", **options)
    return opened(folder)


@pytest.mark.parametrize("options", UNCOMPRESSED.values(), ids=UNCOMPRESSED)
def test_uncompressed_images_are_read_in_place(options: dict[str, Any], tmp_path: Path) -> None:
    found = written(tmp_path, table(), **options)
    assert not found.codec and read(found) == IMAGES
    assert found.labels.tolist() == LABELS and found.labels.dtype == np.int32 and found.classes == tuple(NAMES)


@pytest.mark.parametrize("codec", ["snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_compressed_images_are_known_as_such_and_read_by_rows(codec: str, version: str, tmp_path: Path) -> None:
    found = written(tmp_path, table(), compression=codec, data_page_version=version, row_group_size=120)
    assert found.codec == {"lz4": "lz4_raw"}.get(codec, codec) and found.labels.tolist() == LABELS
    assert list(read_compressed(found)) == IMAGES
    some = np.array([3, 90, 123, 243])
    assert list(read_compressed(subset(found, some))) == [IMAGES[i] for i in some]


def test_columns_may_have_other_names_and_types(tmp_path: Path) -> None:
    names = [NAMES[label] for label in LABELS]
    flat = pa.table({"img": pa.array(IMAGES, pa.large_binary()), "cls": names})
    for i in range(15):  # a long list of columns
        flat = flat.append_column(f"caption {i}", pa.array(["x"] * len(names)))
    found = written(tmp_path, flat, flat.slice(0, 50), compression="none")
    assert [found.classes[label] for label in found.labels] == names + names[:50]
    assert list(found.classes) == sorted(NAMES) and read(found) == IMAGES + IMAGES[:50]
    (tmp_path / "train-1.parquet").unlink()
    found = written(tmp_path, table(features=False), compression="none")
    assert found.labels.tolist() == LABELS and found.classes == ("0", "1", "2")


def without(column: str) -> "pa.Table":
    return table(features=False).drop_columns([column])


def two_labels(first: str, second: str, *, kind: str = "Value") -> "pa.Table":
    """The images with 0 in the second column of labels."""
    about = {name: {"_type": kind, "names": NAMES} for name in (first, second)}
    return (
        table()
        .rename_columns(["image", first])
        .append_column(second, pa.array([0] * 250))
        .replace_schema_metadata({"huggingface": json.dumps({"info": {"features": about}})})
    )


TEXTS = pa.array(["https://a.b/c.jpg"] * 250)
REFUSED: list[tuple[str, Callable[[], "pa.Table"]]] = [
    ("250 of 250 labels in label that are null or below 0", lambda: table(labels=[-1] * 250)),
    ("1 of 250 labels in label that are null", lambda: table(labels=[None, *LABELS[1:]])),
    ("the first is row 7", lambda: table(images=[*IMAGES[:7], None, *IMAGES[8:]])),
    ("no column of images, but label", lambda: without("image")),
    ("URLs", lambda: without("image").append_column("image", TEXTS)),
    ("no column of labels, but image.bytes, image.path", lambda: without("label")),
    ("several columns of labels: label, cls", lambda: table(features=False, cls=LABELS)),
    ("several columns of labels: fine_label, coarse_label", lambda: two_labels("fine_label", "coarse_label")),
    ("labels: fine_label, coarse_label", lambda: two_labels("fine_label", "coarse_label", kind="ClassLabel")),
    ("several columns of images: image.bytes, mask", lambda: table(features=False, mask=pa.array(IMAGES))),
    ("several images a row", lambda: without("image").append_column("i", pa.array([[image] for image in IMAGES]))),
    ("neither numbers nor names", lambda: without("label").append_column("label", pa.array([0.5] * 250))),
    ("neither numbers nor names", lambda: without("label").append_column("label", pa.array([[1]] * 250))),
    ("1 rows without a label in label", lambda: without("label").append_column("label", pa.array([None, *"a" * 249]))),
    ("claims 100000 rows", lambda: pa.table({"image": pa.array([b""] * 10**5), "label": [0] * 10**5})),
    ("has no rows", lambda: table().slice(0, 0)),
    ("the label 3, but 3 classes have names", lambda: table(labels=[3] * 250)),
]


@pytest.mark.parametrize(("words", "make"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_is_no_set_with_labels_is_refused(words: str, make: Callable[[], "pa.Table"], tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        written(tmp_path, make(), compression="none")
    for word in (words, str(tmp_path / "train-0.parquet"), "data.root"):
        assert word in str(caught.value)


def test_files_of_a_split_have_the_same_classes(tmp_path: Path) -> None:
    names = without("label").append_column("label", pa.array(["x"] * 250))
    for first, second in ((table(), table(features=False)), (table(features=False), names)):
        with pytest.raises(DataError, match=r"1\.parquet has other classes than .*0\.parquet \(data\.root\)"):
            written(tmp_path, first, second)


def test_a_file_whose_columns_are_other_files_is_refused(tmp_path: Path) -> None:
    written(tmp_path, table())
    about = pq.read_metadata(tmp_path / "train-0.parquet")
    about.set_file_path("other.parquet")
    about.write_metadata_file(tmp_path / "train-0.parquet")
    with pytest.raises(DataError, match="a column lies in another file"):
        opened(tmp_path)


def test_a_file_without_its_end_is_still_being_written(tmp_path: Path) -> None:
    written(tmp_path, table())
    os.truncate(tmp_path / "train-0.parquet", 4000)
    with pytest.raises(DataError, match="still being written"):
        opened(tmp_path)


@pytest.mark.parametrize("options", [*UNCOMPRESSED.values(), {"compression": "snappy"}], ids=[*UNCOMPRESSED, "snappy"])
def test_a_damaged_file_is_refused_or_read(options: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path, table([image[:50] for image in IMAGES[:40]], LABELS[:40]), **options)
    good, draw = (path := tmp_path / "train-0.parquet").read_bytes(), random.Random(0)
    for _ in range(100):
        content = bytearray(good)
        for _ in range(draw.randint(1, 3)):
            content[draw.randrange(len(content))] = draw.choice([0, 255, 127, draw.randrange(256)])
        path.write_bytes(content)
        try:
            found = opened(tmp_path)
            images = list(read_compressed(found)) if found.codec else read(found)
            assert len(images) == len(found)
        except DataError:
            pass


def test_without_pyarrow_the_message_has_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(), tmp_path / "train.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"data\.root.*pip install \"imagenet-opt\[parquet\]\""):
        opened(tmp_path)
