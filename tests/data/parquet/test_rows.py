"""Parquet files as datasets, pyarrow and others write them: images in place, labels, and refusals."""

import json
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_opt.data.parquet.file import ParquetFile, with_file
from imagenet_opt.data.parquet.footer import read_footer
from imagenet_opt.data.parquet.pages import values
from imagenet_opt.data.parquet.rows import ParquetRows, image_column, numbered, rows_of
from imagenet_opt.errors import ConfigError, DataError
from tests.data.parquet.files import IMAGES, LABELS, NAMES, UNCOMPRESSED, pa, pq, table


def read_all(folder: Path, names: list[str]) -> list[ParquetRows]:
    return [with_file(f"{folder}/{name}", rows_of) for name in names]


def decoded(file: ParquetFile, rows: Any = None) -> list[bytes | None]:
    footer = read_footer(file)
    chunks = [group[image_column(footer).path] for group in footer.groups]
    return [value for chunk in chunks for value in values(file, chunk, rows)]


@pytest.mark.parametrize("options", UNCOMPRESSED.values(), ids=UNCOMPRESSED)
def test_uncompressed_images_are_read_in_place(options: dict[str, Any], tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", **options)
    (rows,) = read_all(tmp_path, ["a.parquet"])
    content = (tmp_path / "a.parquet").read_bytes()
    assert not rows.codec
    places = zip(rows.offsets.tolist(), rows.sizes.tolist(), strict=True)
    assert [content[start : start + size] for start, size in places] == IMAGES
    labels, classes = numbered([rows], ["a.parquet"])
    assert labels.tolist() == LABELS and labels.dtype == np.int32 and classes == tuple(NAMES)


@pytest.mark.parametrize("codec", ["snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_compressed_images_are_known_as_such_and_read_by_rows(codec: str, version: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, compression=codec, data_page_version=version, row_group_size=120)
    (rows,) = read_all(tmp_path, [path.name])
    assert rows.codec == {"lz4": "lz4_raw"}.get(codec, codec) and rows.labels.tolist() == LABELS
    assert with_file(str(path), decoded) == IMAGES
    some = np.array([3, 90])
    expected = [IMAGES[first + i] for first in (0, 120, 240) for i in (3, 90) if first + i < 250]
    assert with_file(str(path), partial(decoded, rows=some)) == expected


def test_columns_may_have_other_names_and_types(tmp_path: Path) -> None:
    names = [NAMES[label] for label in LABELS]
    flat = pa.table({"img": pa.array(IMAGES, pa.large_binary()), "cls": names, "caption": ["x"] * len(names)})
    pq.write_table(flat, tmp_path / "a.parquet", compression="none")
    pq.write_table(flat.slice(0, 50), tmp_path / "b.parquet", compression="none")
    rows = read_all(tmp_path, ["a.parquet", "b.parquet"])
    labels, classes = numbered(rows, ["a", "b"])
    assert [classes[label] for label in labels] == names + names[:50] and list(classes) == sorted(NAMES)
    pq.write_table(table(features=False), tmp_path / "a.parquet", compression="none")
    labels, classes = numbered(read_all(tmp_path, ["a.parquet"]), ["a"])
    assert labels.tolist() == LABELS and classes == ("0", "1", "2")


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
    ("has no rows", lambda: table().slice(0, 0)),
]


@pytest.mark.parametrize(("words", "make"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_is_no_set_with_labels_is_refused(words: str, make: Callable[[], "pa.Table"], tmp_path: Path) -> None:
    pq.write_table(make(), tmp_path / "a.parquet", compression="none")
    with pytest.raises(DataError) as caught:
        read_all(tmp_path, ["a.parquet"])
    for word in (words, str(tmp_path / "a.parquet"), "data.root"):
        assert word in str(caught.value)


def test_files_of_a_split_have_the_same_classes(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    pq.write_table(table(features=False), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b has other classes than a"):
        numbered(read_all(tmp_path, ["a.parquet", "b.parquet"]), ["a", "b"])
    pq.write_table(table(labels=[3] * 250), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="the label 3, but 3 classes have names"):
        numbered(read_all(tmp_path, ["a.parquet"]), ["a"])


def test_a_file_without_its_end_is_still_being_written(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    os.truncate(tmp_path / "a.parquet", 4000)
    with pytest.raises(DataError, match="still being written"):
        read_all(tmp_path, ["a.parquet"])


@pytest.mark.parametrize("options", [*UNCOMPRESSED.values(), {"compression": "snappy"}], ids=[*UNCOMPRESSED, "snappy"])
def test_a_damaged_file_is_refused_or_read(options: dict[str, Any], tmp_path: Path) -> None:
    small = table([image[:50] for image in IMAGES[:40]], LABELS[:40])
    pq.write_table(small, path := tmp_path / "a.parquet", **options)
    good, draw = path.read_bytes(), random.Random(0)
    for _ in range(100):
        content = bytearray(good)
        for _ in range(draw.randint(1, 3)):
            content[draw.randrange(len(content))] = draw.choice([0, 255, 127, draw.randrange(256)])
        path.write_bytes(content)
        try:
            rows = with_file(str(path), rows_of)
            assert rows.codec or (rows.offsets + rows.sizes <= len(content)).all()
            with_file(str(path), decoded)
        except DataError:
            pass


def test_without_pyarrow_the_message_has_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"data\.root.*pip install \"imagenet-opt\[parquet\]\""):
        read_all(tmp_path, ["a.parquet"])
