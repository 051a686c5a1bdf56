"""Splits of Parquet files, named as on the Hugging Face Hub: data/train-00000-of-00294.parquet, train/0000.parquet.

Images whose pages are not compressed are records of the files. Of compressed ones, which only a pack reads, each row
group is a container, and the offset of a sample is the number of its row in the file.
"""

import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from imagenet_opt.data.index.index_cache import Marks, mark, open_kept, scan_each
from imagenet_opt.data.index.layout import unreadable
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.index.tar_index import find_tars
from imagenet_opt.data.parquet.rows import ParquetRows, image_codec, numbered, rows_of, with_file
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.errors import DataError
from imagenet_opt.regular_file import read_file

CARD = "README.md"
_NAMES = {"train": ("train", "training"), "val": ("val", "validation", "valid", "test")}
"""Names of each split, of which the first with files counts."""
_FOLDER = "data"
_SHARD = re.compile(r"-(\d+)-of-(\d+)(?:-\w+)?\.parquet$")
_NUM_EXAMPLES = re.compile(rb"- name: (\S+)\s+num_bytes: \S+\s+num_examples: (\d+)")
_THREADS = 8


@dataclass(frozen=True)
class ParquetFiles:
    """The files of a split: names below `folder`, sorted."""

    folder: Path
    split: str
    names: tuple[str, ...]


def names_of_split(names: Iterable[str], split: str) -> tuple[str, ...]:
    """The Parquet files of a split, sorted. names: paths below the root of a data set."""
    names = list(names)
    for word in _NAMES.get(split, (split,)):
        pattern = re.compile(rf"({_FOLDER}/)?{re.escape(word)}([-_.][^/]*|/[^/]+)?\.parquet", re.IGNORECASE)
        if found := sorted(name for name in names if pattern.fullmatch(name)):
            return tuple(found)
    return ()


def parquet_files(root: Path | None, split: str) -> ParquetFiles | None:
    """The files of a split below `root`, or None. Raises DataError if there are tars or class folders too."""
    if root is None:
        return None
    folder = root.expanduser().resolve()
    try:
        names = names_of_split(_listed(folder, split), split)
        if names and (find_tars(folder, split) or any(map(os.path.isdir, _paths(folder / split)))):
            raise DataError(f"{folder} holds {names[0]}, and tars or folders of {split} (data.root); keep one of them")
    except OSError as error:
        raise unreadable(error) from error
    return ParquetFiles(folder, split, names) if names else None


def _listed(folder: Path, split: str, below: str = "") -> list[str]:
    """The Parquet files in the folders that may hold a split, of which only those that exist are looked at, because
    storage may be slow."""
    found, words = list[str](), _NAMES.get(split, (split,))
    for path in _paths(folder / below):
        name = os.path.join(below, os.path.basename(path))
        if name.lower().endswith(".parquet"):
            found.append(name)
        elif name in (*words, _FOLDER, *(f"{_FOLDER}/{word}" for word in words), *map(str, Path(split).parents)):
            found += _listed(folder, split, name)
    return found


def _paths(folder: Path) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def codec_of(file: Path) -> str:
    """How the images of a file are compressed; "" if they are not. Raises DataError."""
    return with_file(file, image_codec)


def open_parquet(files: ParquetFiles, cache_dir: Path) -> Split:
    """The split of these files, from the cache while their sizes and times are the same. Raises DataError."""
    _check_complete(files)

    return open_kept(cache_dir, f"{files.split} Parquet of {files.folder}", partial(_scanned, files), files=files.names)


def _scanned(files: ParquetFiles) -> tuple[Split, Marks]:
    try:
        marks = {str(path): mark(path) for path in (files.folder / name for name in files.names)}
    except OSError as error:
        raise unreadable(error) from error
    read = partial(_rows, files)
    split = _split(files, scan_each("Parquet files", files.names, read, num_threads=_THREADS))
    _compare_rows(files, len(split))
    return split, marks


def _rows(files: ParquetFiles, name: str) -> ParquetRows:
    return with_file(files.folder / name, rows_of)


def _split(files: ParquetFiles, rows: Sequence[ParquetRows]) -> Split:
    labels, classes = numbered(rows, [str(files.folder / name) for name in files.names])
    codec = next((each.codec for each in rows if each.codec), "")
    lengths = [each.group_rows if codec else (len(each.labels),) for each in rows]
    containers = [(name, num) for name, nums in zip(files.names, lengths, strict=True) for num in nums]
    in_file = [np.arange(len(each.labels)) for each in rows]
    return Split(
        place=str(files.folder),
        classes=classes,
        labels=labels,
        **joined([b"row-%d" % row for each in in_file for row in each.tolist()]),
        sizes=np.concatenate([each.sizes for each in rows]),
        containers=tuple(name for name, _ in containers),
        container_ids=np.repeat(np.arange(len(containers), dtype=np.int32), [num for _, num in containers]),
        offsets=np.concatenate(in_file if codec else [each.offsets for each in rows]),
        codec=codec,
    )


def _check_complete(files: ParquetFiles) -> None:
    """Raise DataError if the names of the files count to another number of files."""
    counts = [(int(match[1]), int(match[2])) for name in files.names if (match := _SHARD.search(name))]
    totals = {total for _, total in counts}
    if len(totals) > 1 or len({*counts}) < len(counts):
        raise DataError(
            f"{files.folder} holds several versions of {files.split}: {files.names[0]} ... {files.names[-1]} "
            "(data.root); remove the old files"
        )
    if counts and (missing := {*range(min(totals.pop(), 2 * len(counts)))} - {number for number, _ in counts}):
        raise DataError(
            f"{files.folder} holds {len(files.names)} files such as {files.names[0]}, but number {min(missing)} is "
            "missing (data.root); download it"
        )


def _compare_rows(files: ParquetFiles, num_rows: int) -> None:
    """Warn if README.md, the card of the data set, tells another number of rows: push_to_hub of several processes lost
    some (huggingface/datasets, issue 8044)."""
    try:
        card = read_file(files.folder / CARD)
    except OSError:
        return
    words = _NAMES.get(files.split, (files.split,))
    expected = {int(num) for name, num in _NUM_EXAMPLES.findall(card) if name.decode("utf-8", "replace") in words}
    if len(expected) == 1 and num_rows not in expected:
        tell_once(
            f"{files.folder} has {num_rows} rows in {len(files.names)} files of {files.split}, but {CARD} says "
            f"{expected.pop()} (data.root): rows are missing, or the card is old",
            logging.WARNING,
        )
