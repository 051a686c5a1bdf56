"""The samples of Parquet files as on the Hugging Face Hub: a column of images and a column of labels.

Images whose pages are not compressed are read in place, like the records of a tar. Others can only be packed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.webdataset import number_labels, with_numbers
from imagenet_opt.data.parquet.file import ParquetError, ParquetFile, damaged
from imagenet_opt.data.parquet.footer import BYTE_ARRAY, INT32, INT64, Chunk, Column, Footer, read_footer
from imagenet_opt.data.parquet.pages import places, values
from imagenet_opt.errors import ClassMismatch

_LABELS = ("label", "labels", "cls", "class", "class_label", "target", "fine_label")
"""Names of columns of labels, for files that do not say which column has classes."""
_LIKE_LABELS = re.compile(r"(.*_)?(labels?|cls|class|target)")
_FEWEST_ROW_BYTES = 8
"""A row with an image has more. A column of equal values could claim billions of rows."""
_KEEP_ONE = 'keep one (datasets: remove_columns(["..."])) and write the files again'


@dataclass(frozen=True)
class ParquetRows:
    """Rows of one file. labels: of each row, a number or a name. names: of numbered classes; () without any. offsets:
    int64 (num_rows,), place of each image in the file, in bytes; empty if images are compressed. sizes: int64
    (num_rows,), bytes of each image, or a mean. codec: "" if no image is compressed. group_rows: of each row group.
    choice: which of several columns of labels is read, as a sentence; "" if there is one."""

    labels: NDArray[Any]
    names: tuple[str, ...]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    codec: str
    group_rows: tuple[int, ...]
    choice: str


def rows_of(file: ParquetFile) -> ParquetRows:
    """Raises ParquetError, OSError."""
    footer = read_footer(file)
    if not footer.num_rows:
        raise ParquetError("has no rows; remove it, or write it again")
    image, (label, names, choice) = image_column(footer), _label(footer)
    if footer.num_rows > file.num_bytes // _FEWEST_ROW_BYTES:
        raise damaged(f"it claims {footer.num_rows} rows in {file.num_bytes} bytes")
    labels = np.concatenate([_labels(file, group[label.path]) for group in footer.groups])
    chunks = [group[image.path] for group in footer.groups]
    codec = _codec(chunks)
    group_rows = tuple(chunk.num_rows for chunk in chunks)
    if codec:
        means = np.array([(chunk.end - chunk.start) // chunk.num_rows for chunk in chunks], np.int64)
        return ParquetRows(
            labels, names, np.empty(0, np.int64), np.repeat(means, group_rows), codec, group_rows, choice
        )
    offsets, sizes = np.concatenate([places(file, chunk) for chunk in chunks], axis=1)
    if len(empty := np.flatnonzero(sizes < 0)):
        raise ParquetError(
            f"has {len(empty)} rows without the bytes of an image, the first is row {empty[0]}: the images are other "
            "files; write them into the Parquet files (datasets: push_to_hub embeds them)"
        )
    return ParquetRows(labels, names, offsets, sizes, codec, group_rows, choice)


def image_codec(file: ParquetFile) -> str:
    """How the images of a file are compressed; "" if they are not. Raises ParquetError, OSError."""
    footer = read_footer(file)
    path = image_column(footer).path
    return _codec([group[path] for group in footer.groups])


def _codec(chunks: Sequence[Chunk]) -> str:
    return next((chunk.codec for chunk in chunks if chunk.codec), "")


def numbered(rows: Sequence[ParquetRows], places: Sequence[str]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Positions and classes of the rows of all files, see `number_labels`. places: of the files. Raises DataError."""
    for other, place in zip(rows, places, strict=True):
        if (other.names, other.labels.dtype) != (rows[0].names, rows[0].labels.dtype):
            raise ClassMismatch(
                f"{place} has other classes than {places[0]} (data.root); files of one split need the same classes in "
                "the same order"
            )
    labels = np.concatenate([each.labels for each in rows])
    return number_labels(labels.tolist(), rows[0].names, f"{places[0]}, or a file beside it,")


def image_column(footer: Footer) -> Column:
    """The column of images."""
    declared = [name for name, about in footer.features.items() if about.get("_type") == "Image"]
    found = [column for column in footer.columns if column.type == BYTE_ARRAY and not column.is_text]
    if declared:
        found = [column for column in found if column.path[0] in declared]
    if len(found) > 1:
        raise ParquetError(f"has several columns of images: {_listed(found)}; {_KEEP_ONE}")
    if not found:
        raise ParquetError(
            f"has no column of images, but {_listed(footer.columns)}: expected encoded images, as binary or as struct "
            "of bytes and path. If a column has URLs or paths, write the images themselves into the files"
        )
    if found[0].is_repeated:
        raise ParquetError(f"has several images a row in {_listed(found)}; write a row for each image")
    return found[0]


def _label(footer: Footer) -> tuple[Column, tuple[str, ...], str]:
    """The column of labels, names of its numbers, and the choice, see ParquetRows. Columns without a description that
    are only called like labels are no reason to refuse a `label`, but one to refuse another guess."""
    is_class = {name: about for name, about in footer.features.items() if about.get("_type") == "ClassLabel"}
    wanted = ({"label"} if "label" in is_class else {*is_class}) or {*_LABELS}
    found = [column for column in footer.columns if column.path[0] in wanted]
    others = [
        column
        for column in footer.columns
        if column not in found and (column.path[0] in is_class or _LIKE_LABELS.fullmatch(column.path[0].lower()))
    ]
    if len(found) > 1 or (found and others and not is_class and found[0].path[0] != "label"):
        raise ParquetError(f"has several columns of labels: {_listed([*found, *others])}; {_KEEP_ONE}")
    if not found:
        raise ParquetError(
            f"has no column of labels, but {_listed(footer.columns)}: expected one of {', '.join(_LABELS)}, or a "
            "ClassLabel of datasets"
        )
    (column,) = found
    if column.is_repeated or not (column.type in (INT32, INT64) or column.is_text):
        raise ParquetError(f"has labels in {_listed(found)} that are neither numbers nor names of one class a row")
    names = is_class.get(column.path[0], {}).get("names")
    choice = f"the labels are those of {_listed(found)}, not of {_listed(others)}; to train on others, {_KEEP_ONE}"
    return column, with_numbers(list(map(str, names)) if isinstance(names, list) else []), choice * bool(others)


def _labels(file: ParquetFile, chunk: Chunk) -> NDArray[Any]:
    """int64 numbers, or names as objects."""
    column = chunk.column
    labels = values(file, chunk)
    missing = np.array([label is None for label in labels])
    if column.is_text:
        if missing.any():
            raise ParquetError(f"has {missing.sum()} rows without a label in {_listed([column])}; remove these rows")
        return np.array([label.decode("utf-8", "replace") for label in labels], object)
    numbers = np.where(missing, -1, labels).astype(np.int64)
    if hidden := int((numbers < 0).sum()):
        raise ParquetError(
            f"has {hidden} of {len(numbers)} labels in {_listed([column])} that are null or below 0, as in test splits "
            "without labels; choose another split (data.train_folder, data.val_folder), or remove these rows"
        )
    return numbers


def _listed(columns: Sequence[Column]) -> str:
    names = [".".join(column.path)[:100] for column in columns[:8]]
    return ", ".join(names if len(columns) <= 8 else [*names, "..."])
