"""Splits of Parquet files, in a folder, in a bucket or on the Hugging Face Hub, and named as there:
data/train-00000-of-00294.parquet, train/0000.parquet.

Images whose pages are not compressed are records of the files. Of compressed ones, which only a pack reads, each row
group is a container, and the offset of a sample is the number of its row in the file.

Files of the Hub with uncompressed images are downloaded into the cache of huggingface_hub, which other programs share,
and read there. Others are read over the network.
"""

import glob
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_opt.data.index.index_cache import Marks, marks_of, open_kept, scan_each
from imagenet_opt.data.index.layout import Root, unreadable
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.index.tar_index import find_tars
from imagenet_opt.data.parquet.file import open_any, with_file
from imagenet_opt.data.parquet.rows import ParquetRows, image_codec, numbered, rows_of
from imagenet_opt.data.storage.remote_file import explained
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.errors import ConfigError, DataError, DatasetNotFound
from imagenet_opt.object_storage import is_hub

_HUB = re.compile(
    r"hf://datasets/(?P<repo_id>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[^/@]+))?(?:/(?P<folder>.+?))?/?"
)
_CONVERTED = "@refs/convert/parquet/default"
_CARD = "README.md"
_NAMES = {"train": ("train", "training"), "val": ("val", "validation", "valid", "test")}
"""Names of each split, of which the first with files counts."""
_FOLDER = "data"
_SHARD = re.compile(r"-(\d+)-of-(\d+)(?:-\w+)?\.parquet$")
_NUM_EXAMPLES = re.compile(rb"- name: (\S+)\s+num_bytes: \S+\s+num_examples: (\d+)")
_THREADS = 8
_MOST_CARD = 2**24


@dataclass(frozen=True)
class ParquetFiles:
    """The files of a split: names below `place`, a folder or URL, sorted. etags: of objects when they were listed."""

    place: str
    split: str
    names: tuple[str, ...]
    etags: tuple[str, ...] = ()


def _names_of_split(names: Iterable[str], split: str) -> tuple[str, ...]:
    """The Parquet files of a split, sorted. names: paths below the root of a data set."""
    names = list(names)
    for word in _NAMES.get(split, (split,)):
        pattern = re.compile(rf"({_FOLDER}/)?{re.escape(word)}([-_.][^/]*|/[^/]+)?\.parquet", re.IGNORECASE)
        if found := sorted(name for name in names if pattern.fullmatch(name)):
            return tuple(found)
    return ()


def parquet_files(root: Root, split: str) -> ParquetFiles | None:
    """The files of a split below `root`, or None. Raises DataError if there are tars or class folders too."""
    names = _names_of_split(_listed(root, split), split)
    if names and (find_tars(root, split) or root.entries(split)[0]):
        raise DataError(f"{root.place} holds {names[0]}, and tars or folders of {split} (data.root); keep one of them")
    return ParquetFiles(root.place, split, names, root.etags(names)) if names else None


def _listed(root: Root, split: str, below: str = "") -> Iterator[str]:
    """The Parquet files in the folders that may hold a split, of which only those that exist are listed."""
    words = _NAMES.get(split, (split,))
    wanted = {*words, _FOLDER, *(f"{_FOLDER}/{word}" for word in words), *map(str, Path(split).parents)}
    for name in (each for names in root.entries(below) for each in names):
        path = os.path.join(below, name)
        if path.lower().endswith(".parquet"):
            yield path
        elif path in wanted:
            yield from _listed(root, split, path)


def hub_files(url: str, split: str) -> tuple[ParquetFiles, str]:
    """The Parquet files of a split of hf://datasets/OWNER/NAME[@REVISION][/FOLDER]: downloaded or, if the images of the
    first file are compressed, of the newest commit on the Hub; and how they are compressed, or "".

    Raises ConfigError for another URL, DatasetNotFound, StorageForbidden, StorageFailed.
    """
    match = _HUB.fullmatch(url)
    if match is None or ".." in url.split("/"):
        raise ConfigError(f"data.root={url} is no data set; expected hf://datasets/OWNER/NAME[@REVISION][/FOLDER]")
    import huggingface_hub
    from huggingface_hub import constants

    repo: dict[str, Any] = {"repo_id": match["repo_id"], "repo_type": "dataset"}
    folder = f"{match['folder']}/" if match["folder"] else ""
    with explained(url):
        if constants.HF_HUB_OFFLINE:
            found = huggingface_hub.snapshot_download(
                **repo, revision=match["revision"], local_files_only=True, allow_patterns=[_CARD]
            )
            if (files := parquet_files(Root(str(Path(found, folder).resolve())), split)) is None:
                raise DatasetNotFound(
                    f"{url} has no files of {split} in {found} (data.root); unset HF_HUB_OFFLINE to download them"
                )
            return files, ""
        about = huggingface_hub.HfApi().dataset_info(match["repo_id"], revision=match["revision"])
        names = [file.rfilename for file in about.siblings or []]
        inside = [name.removeprefix(folder) for name in names if name.startswith(folder)]
        if not (wanted := _names_of_split(inside, split)):
            raise DatasetNotFound(_without_split(url, split, names))
        place = f"hf://datasets/{match['repo_id']}@{about.sha}/{folder}".removesuffix("/")
        if codec := with_file(f"{place}/{wanted[0]}", image_codec):
            tell_once(f"{url}: {len(wanted)} files of {split} are read over the network, and not downloaded")
            return ParquetFiles(place, split, wanted), codec
        tell_once(f"{url}: {len(wanted)} files of {split} come from the Hub, unless {constants.HF_HUB_CACHE} has them")
        patterns = [glob.escape(folder + name) for name in (*wanted, *{_CARD} & {*inside})]
        found = huggingface_hub.snapshot_download(**repo, revision=match["revision"], allow_patterns=patterns)
    return ParquetFiles(str(Path(found, folder)), split, wanted), ""


def _without_split(url: str, split: str, names: list[str]) -> str:
    parquet = [name for name in names if name.endswith(".parquet")]
    if not parquet:
        return (
            f"{url} has no Parquet files (data.root); the Hub converts many data sets: try data.root={url}{_CONVERTED}"
        )
    return (
        f"{url} has no Parquet files of {split}, but {', '.join(parquet[:3])} (data.root); expected {split}-*.parquet. "
        "Add the folder that holds such files to data.root, or name another split with data.train_folder, "
        "data.val_folder"
    )


def open_parquet(files: ParquetFiles, cache_dir: Path) -> Split:
    """The split of these files; from the cache while their sizes and times, or their commit, are the same. Raises
    DataError."""

    def scan() -> tuple[Split, Marks]:
        paths = [] if is_hub(files.place) else [f"{files.place}/{name}" for name in files.names]
        try:
            marks = marks_of(paths)
        except OSError as error:
            raise unreadable(error) from error
        return read_parquet(files), marks

    return open_kept(cache_dir, f"{files.split} Parquet of {files.place}", scan, files=files.names)


def read_parquet(files: ParquetFiles) -> Split:
    """The split of these files: labels, and the places of images. Raises DataError."""
    _check_complete(files)
    etags = dict(zip(files.names, files.etags or [""] * len(files.names), strict=True))
    rows = scan_each(
        "Parquet files",
        files.names,
        lambda name: with_file(f"{files.place}/{name}", rows_of, etags[name]),
        num_threads=_THREADS,
    )
    if choice := next((each.choice for each in rows if each.choice), ""):
        tell_once(f"{files.place}: {choice} (data.root)")
    split = _split(files, rows)
    _compare_rows(files, len(split))
    return split


def _split(files: ParquetFiles, rows: Sequence[ParquetRows]) -> Split:
    labels, classes = numbered(rows, [f"{files.place}/{name}" for name in files.names])
    codec = next((each.codec for each in rows if each.codec), "")
    lengths = [each.group_rows if codec else (len(each.labels),) for each in rows]
    file_ids = np.repeat(np.arange(len(rows)), list(map(len, lengths))).tolist()
    in_file = [np.arange(len(each.labels)) for each in rows]
    return Split(
        place=files.place,
        classes=classes,
        labels=labels,
        **joined([b"row-%d" % row for each in in_file for row in each.tolist()]),
        sizes=np.concatenate([each.sizes for each in rows]),
        containers=tuple(files.names[i] for i in file_ids),
        container_ids=np.repeat(np.arange(len(file_ids), dtype=np.int32), np.concatenate(lengths)),
        offsets=np.concatenate(in_file if codec else [each.offsets for each in rows]),
        etags=np.array([files.etags[i].encode() for i in file_ids] if files.etags else [], np.bytes_),
        codec=codec,
    )


def _check_complete(files: ParquetFiles) -> None:
    """Raise DataError if the names of the files count to another number of files."""
    counts = [(int(match[1]), int(match[2])) for name in files.names if (match := _SHARD.search(name))]
    totals = {total for _, total in counts}
    if len(totals) > 1 or len({*counts}) < len(counts):
        raise DataError(
            f"{files.place} holds several versions of {files.split}: {files.names[0]} ... {files.names[-1]} "
            "(data.root); remove the old files"
        )
    if counts and (missing := {*range(min(totals.pop(), 2 * len(counts)))} - {number for number, _ in counts}):
        raise DataError(
            f"{files.place} holds {len(files.names)} files such as {files.names[0]}, but number {min(missing)} is "
            "missing (data.root); download it"
        )


def _compare_rows(files: ParquetFiles, num_rows: int) -> None:
    """Warn if README.md, the card of the data set, tells another number of rows: push_to_hub of several processes lost
    some (huggingface/datasets, issue 8044)."""
    try:
        with open_any(f"{files.place}/{_CARD}") as file:
            card = file.read(_MOST_CARD)
    except (OSError, DataError):
        return
    words = _NAMES.get(files.split, (files.split,))
    expected = {int(num) for name, num in _NUM_EXAMPLES.findall(card) if name.decode("utf-8", "replace") in words}
    if len(expected) == 1 and num_rows not in expected:
        tell_once(
            f"{files.place} has {num_rows} rows in {len(files.names)} files of {files.split}, but {_CARD} says "
            f"{expected.pop()} (data.root): rows are missing, or the card is old",
            logging.WARNING,
        )
