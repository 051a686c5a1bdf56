"""The samples of a split: records in containers, as flat arrays that processes share.

A list of 1.28 million (path, label) tuples would cost each worker hundreds of MB, because reference counts copy its
pages. All workers map the same flat arrays.
"""

import copyreg
import hashlib
import logging
import os
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.errors import ClassMismatch, DataError
from imagenet_opt.object_storage import is_url
from imagenet_opt.regular_file import read_file

Rows = NDArray[np.int64]

PER_SAMPLE = ("labels", "sizes", "container_ids", "offsets", "checksums")
"""Columns with a number for each sample."""


def _none() -> NDArray[Any]:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Origin:
    """The files of a split's columns, from which another process maps them. about: the file that was written last.
    crc32: of its content. open: opens the split again."""

    about: Path
    crc32: int
    open: Callable[[], "Split"]

    @property
    def is_there(self) -> bool:
        """Whether the files were neither removed nor replaced."""
        try:
            return zlib.crc32(read_file(self.about)) == self.crc32
        except OSError:
            return False


@dataclass(frozen=True, kw_only=True)
class Split:
    """Samples of one split; a column that is unknown or not needed is empty.

    place: their folder or URL. labels: int32 (num_samples,), positions in `classes`. names: uint8, all names joined.
    name_offsets: int64 (num_samples + 1,); sample i is called names[name_offsets[i]:name_offsets[i + 1]].

    containers: files below `place` that hold many samples each; empty: each sample is a file, at its name below
    `place`. container_ids: int32 (num_samples,), positions in `containers`. offsets: int64 (num_samples,), where each
    sample begins in its container. sizes: int64 (num_samples,), bytes of each sample. checksums: uint32
    (num_samples,), zlib.crc32 of these bytes. etags: of each object when the split was listed: (num_containers,), or
    (num_samples,) without containers.

    codec: how samples are compressed together, so that single ones cannot be read; "": not. Then a container is a part
    of its file, offsets are numbers of rows in the file, and sizes are estimates.

    others: kinds of files that are left out, because they are no images by their names -> number. open_ends:
    containers without an end mark, which may have lost samples. origin: None for
    columns that are only in memory, which pickle then copies. whole, rows: of which split these samples are a part.
    """

    place: str
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    names: NDArray[np.uint8]
    name_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64] = field(default_factory=_none)
    containers: tuple[str, ...] = ()
    container_ids: NDArray[np.int32] = field(default_factory=_none)
    offsets: NDArray[np.int64] = field(default_factory=_none)
    checksums: NDArray[np.uint32] = field(default_factory=_none)
    etags: NDArray[np.bytes_] = field(default_factory=_none)
    codec: str = ""
    others: Mapping[str, int] = field(default_factory=dict)
    open_ends: tuple[int, ...] = ()
    origin: Origin | None = None
    whole: "Split | None" = None
    rows: Rows = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce__(self) -> Any:
        if self.origin is not None and self.origin.is_there:
            return _reopened, (self.origin, self.place)
        return copyreg.__newobj__, (type(self),), self.__dict__  # type: ignore[attr-defined]

    @property
    def is_remote(self) -> bool:
        return is_url(self.place)

    @property
    def folder(self) -> Path:
        """`place` as a folder."""
        return Path(self.place)

    @property
    def fingerprint(self) -> str:
        """Name of the local cache of the samples of a URL; changes with their content."""
        found = hashlib.sha256(self.place.encode())
        if self.containers and len(self.checksums):
            columns: tuple[NDArray[Any], ...] = (self.container_ids, self.offsets, self.sizes, self.checksums)
        elif self.containers:
            columns = (self.container_ids, self.offsets, self.sizes, self.etags)
        else:
            columns = (self.names, self.name_offsets, self.sizes, self.etags)
        for column in columns:
            found.update(f"{column.dtype} {column.shape}".encode())
            found.update(np.ascontiguousarray(column).data)
        return found.hexdigest()[:24]

    @property
    def doubt(self) -> str:
        """Why samples may be missing, for a split with open ends."""
        return (
            f"{len(self.open_ends)} of {len(self.containers)} tars in {self.place} have no end mark, such as "
            f"{self.containers[self.open_ends[0]]} (data.root): their writer left it out, or they were cut off between "
            "two files; shard_lengths in _info.json would tell"
        )

    def name(self, i: int) -> str:
        """Name of sample i: of a file, its path below `place`."""
        return os.fsdecode(self.names[self.name_offsets[i] : self.name_offsets[i + 1]].tobytes())

    def file(self, i: int) -> str:
        """Path below `place` of the file that holds sample i. Raises DataError for a path outside of it, as in a
        damaged cache."""
        name = self.containers[self.container_ids[i]] if self.containers else self.name(i)
        if name[:1] == "/" or (".." in name and ".." in name.split("/")):
            raise DataError(
                f"the index of {self.place} names {name!r}, outside of this folder; empty data.cache_dir/index"
            )
        return name

    def path(self, i: int) -> str:
        """Full path or URL of sample i; of one in a container, for messages: PLACE/CONTAINER: NAME."""
        path = f"{self.place}/{self.file(i)}"
        return f"{path}: {self.name(i)}" if self.containers else path


def _reopened(origin: Origin, place: str) -> Split:
    """The same split in another process. Raises DataError if its files were removed or replaced meanwhile."""
    if not origin.is_there:
        raise DataError(
            f"the index of {place} in {origin.about.parent} was removed or replaced; run the same command again to "
            "resume"
        )
    return origin.open()


def joined(names: list[bytes]) -> dict[str, Any]:
    """The columns names and name_offsets."""
    return {
        "names": np.frombuffer(b"".join(names), np.uint8),
        "name_offsets": np.cumsum([0, *map(len, names)], dtype=np.int64),
    }


def numbers(kinds: Mapping[str, int]) -> str:
    """For example "30 .heic, 7 .txt", the most frequent kinds first."""
    shown = Counter(kinds).most_common(5)
    words = [f"{num} {name}" for name, num in shown]
    return ", ".join(words if len(kinds) <= len(shown) else [*words, "..."])


def subset(split: Split, rows: Rows) -> Split:
    """These samples, in memory; rows may repeat."""
    lengths = np.diff(split.name_offsets)[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.arange(offsets[-1]) + np.repeat(split.name_offsets[rows] - offsets[:-1], lengths)
    of_files = () if split.containers else ("etags",)
    columns = {name: column[rows] for name in (*PER_SAMPLE, *of_files) if len(column := getattr(split, name))}
    columns |= {"names": np.asarray(split.names[places]), "name_offsets": offsets}
    return replace(split, **columns, **_as_part(split, rows))


def _as_part(split: Split, rows: Rows) -> dict[str, Any]:
    """Fields of a split in memory with these samples. The local cache has a place for each sample of a whole split."""
    whole = split if split.whole is None else split.whole
    if not split.is_remote or whole.origin is None:
        return {"origin": None}
    return {"origin": None, "whole": whole, "rows": rows if split.whole is None else split.rows[rows]}


def with_classes_of(train: Split, val: Split) -> Split:
    """`val` with the classes of train and their numbers; classes without validation images are named in a warning.

    Raises ClassMismatch for a class that only val has.
    """
    if train.classes == val.classes:
        return val
    number_of = {name: number for number, name in enumerate(train.classes)}
    if strange := sorted(set(val.classes) - set(train.classes)):
        raise ClassMismatch(
            f"{val.place} has {len(strange)} classes that {train.place} does not have: {_first(strange)}; give each "
            "the name of its training folder, or remove it (data.train_folder, data.val_folder). Classes may be absent "
            "from the validation images, but not from the training images"
        )
    absent = sorted(set(train.classes) - set(val.classes))
    if absent:
        tell_once(
            f"{len(absent)} of {len(train.classes)} classes have no images in {val.place} (data.val_folder): "
            f"{_first(absent)}; the network learns them, and the validation says nothing about them",
            logging.WARNING,
        )
    labels = np.array([number_of[name] for name in val.classes], np.int32)[val.labels]
    return replace(val, classes=train.classes, labels=labels, **_as_part(val, np.arange(len(val))))


def _first(names: list[str]) -> str:
    return ", ".join(names if len(names) <= 3 else [*names[:3], "..."])
