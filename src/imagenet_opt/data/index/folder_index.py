"""Index of a data set's files, as flat arrays that are memory-mapped once cached.

A list of 1.28 million (path, label) tuples would cost each worker hundreds of MB, because reference counts copy its
pages. All workers share flat arrays.
"""

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.index_cache import ABOUT, check_ends, check_range, load_or_make, open_column, save_columns
from imagenet_opt.data.index.layout import is_image, kind, numbers, split_folder, unreadable
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.storage.retry import SparseWarnings, retry_transient, tell_once
from imagenet_opt.display.progress import print_once
from imagenet_opt.errors import ClassMismatch, DataError, DatasetNotFound, EmptyClass, printable
from imagenet_opt.regular_file import read_file

log = logging.getLogger(__name__)
_warn = SparseWarnings(log)

_FORMAT = 3
_SCAN_THREADS = 32
_SLOW = 5.0
"""Seconds after which a listing says what it does."""
_PATIENCE = 60.0
"""Seconds for which the listing of a folder is retried."""
_CLOCK_STEP_NS = 2 * 10**9
"""Coarsest step of a file system's times (FAT: 2 s; Lustre: 1 s)."""

Marks = dict[str, tuple[int, int, int]]
"""Folder -> modification time, change time and inode. Unpacking may set the first back, and no program the second."""


@dataclass(frozen=True)
class FileIndex:
    """Files of one split. labels: int32 (num_samples,). names: uint8, all relative paths joined. name_offsets: int64
    (num_samples + 1,); the path of file i is names[name_offsets[i]:name_offsets[i + 1]]. others: kinds of files that
    are left out, because they are no images by their names -> number."""

    folder: Path
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    names: NDArray[np.uint8]
    name_offsets: NDArray[np.int64]
    others: Mapping[str, int] = field(default_factory=dict, kw_only=True)

    @property
    def place(self) -> str:
        return str(self.folder)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, i: int) -> str:
        """Full path of sample i. Raises DataError for a path outside of the folder, as in a damaged cache."""
        name = os.fsdecode(self.names[self.name_offsets[i] : self.name_offsets[i + 1]].tobytes())
        if name[:1] == "/" or (".." in name and ".." in name.split("/")):
            raise DataError(
                f"the index of {self.folder} names {name!r}, outside of this folder; empty data.cache_dir/index"
            )
        return os.path.join(self.folder, name)


Split = FileIndex | ShardIndex
"""Samples with `labels`, int32 (num_samples,), positions in `classes`. place: their folder or URL, for messages."""


def open_split(root: Path | None, split: str, cache_dir: Path) -> FileIndex:
    """Index of `root`/`split`, one folder per class, from the cache when nothing changed.

    The cache is valid while every folder has the marks that it had before the scan listed it: adding, removing or
    renaming a file changes the times of its folder. The index is not cached when a folder changed less than two seconds
    before the scan: a later change could leave the same time, because some file systems keep whole seconds. If several
    processes have one cache folder, one process lists the files and the others wait.

    Raises DatasetNotFound, EmptyClass, DataError.
    """
    folder = split_folder(root, split)

    def make(cached: Path) -> FileIndex:
        started_ns, listed = time.time_ns(), now()
        slow = threading.Timer(_SLOW, print_once, [f"listing {printable(str(folder))}; the list is kept in {cached}"])
        slow.start()
        try:
            index, marks = _scan(folder)
        finally:
            slow.cancel()
            slow.join()
        if max(max(changes) for *changes, _ in marks.values()) < started_ns - _CLOCK_STEP_NS:
            columns = {name: getattr(index, name) for name in ("labels", "names", "name_offsets")}
            about = {"format": _FORMAT, "classes": index.classes, "listed": listed, "others": index.others}
            save_columns(cached, columns, about | {"folders": list(marks), "marks": list(marks.values())}, index.place)
        tell_listed(index)
        return index

    return load_or_make(cache_dir, os.fsencode(folder), lambda cached: _load(cached, folder), make)[0]


def now() -> str:
    """The time of a listing."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC")


def tell_listed(index: FileIndex, listed: str = "", cached: Path | None = None) -> None:
    """Say once how many images a data set has: when they were listed, if the list is the one in `cached`; how many
    other files were left out."""
    parts = []
    if cached is not None:
        parts.append(f"as listed on {listed[:16]} UTC; to list them again, remove {cached}")
    if index.others:
        parts.append(f"left out are other files: {numbers(index.others)}")
    if parts:
        tell_once(f"{len(index)} images below {index.place}, {'; '.join(parts)}")


def scan_split(root: Path, split: str) -> FileIndex:
    """Index of `root`/`split` without a cache, see `open_split`."""
    return _scan(split_folder(root, split))[0]


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
    tell_once(
        f"{len(absent)} of {len(train.classes)} classes have no images in {val.place} (data.val_folder): "
        f"{_first(absent)}; the network learns them, and the validation says nothing about them",
        logging.WARNING,
    )
    labels = np.array([number_of[name] for name in val.classes], np.int32)[val.labels]
    return replace(val, classes=train.classes, labels=labels)


def _first(names: list[str]) -> str:
    return ", ".join([*names[:3], *(["..."] * (len(names) > 3))])


def _scan(folder: Path) -> tuple[FileIndex, Marks]:
    """The index, and the marks of each folder below `folder` before it was listed."""
    marks, others = {"": _marks(folder)}, Counter[str]()
    entries = []
    for entry in os.scandir(folder):
        if entry.is_dir():
            entries.append(entry)
        else:
            others["images outside of class folders" if is_image(entry.name) else kind(entry.name)] += 1
    classes = tuple(sorted(entry.name for entry in entries))
    if not classes:
        raise DatasetNotFound(
            f"no class folders in {folder} (data.root, data.train_folder, data.val_folder); expected <class>/*.JPEG"
        )
    _check_links(folder, sorted(Path(entry) for entry in entries if entry.is_symlink()))
    with ThreadPoolExecutor(_SCAN_THREADS) as threads:
        listed = list(threads.map(lambda name: _list(folder, name), classes))
    for name, (images, of_class, below) in zip(classes, listed, strict=True):
        check_not_empty(f"{folder / name}", images, of_class)
        others += of_class
        marks |= below
    encoded = [os.fsencode(image) for images, _, _ in listed for image in images]
    index = FileIndex(
        folder,
        classes,
        np.repeat(np.arange(len(classes), dtype=np.int32), [len(images) for images, _, _ in listed]),
        np.frombuffer(b"".join(encoded), dtype=np.uint8),
        np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        others=others,
    )
    return index, marks


def check_not_empty(place: str, images: Sized, others: Mapping[str, int]) -> None:
    """Raise EmptyClass if there are no images in the class folder `place`."""
    if not images:
        has = f", but {numbers(others)}, which are not read" if others else ""
        raise EmptyClass(
            f"no images in {place}{has}; put images there, or remove the folder (data.root): a class may be absent "
            "from the validation images"
        )


def _marks(folder: Path | str) -> tuple[int, int, int]:
    status = os.stat(folder)
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _list(folder: Path, class_name: str) -> tuple[list[str], Counter[str], Marks]:
    """Sorted relative paths of the images in one class folder, kinds of its other files, and marks of all folders in
    it. Raises DataError."""
    try:
        return retry_transient(lambda: _images_below(folder, class_name), str(folder / class_name), _PATIENCE)
    except OSError as error:
        raise unreadable(error) from error


def _images_below(folder: Path, class_name: str) -> tuple[list[str], Counter[str], Marks]:
    images, others, marks = list[str](), Counter[str](), {class_name: _marks(folder / class_name)}
    for place, below, names in os.walk(folder / class_name, onerror=_raise):
        below.sort()
        relative = os.path.relpath(place, folder)
        for name in below:  # os.walk lists these folders later, unless they are links
            marks[os.path.join(relative, name)] = _marks(os.path.join(place, name))
            if os.path.islink(os.path.join(place, name)):
                _warn(f"{place}/{name} is not followed: below a class, links to folders are ignored (data.root)")
        images += [os.path.join(relative, name) for name in names if is_image(name)]
        others.update(kind(name) for name in names if not is_image(name))
    return sorted(images), others, marks


def _check_links(folder: Path, links: list[Path]) -> None:
    """Raise DataError for a class that is a link to images of another class: they would get two labels."""
    others, above = {folder.resolve(): folder}, dict.fromkeys(folder.resolve().parents, folder)
    for link in links:
        target = link.resolve()
        same = next((others[place] for place in (target, *target.parents) if place in others), above.get(target))
        if same:
            raise DataError(
                f"{link} is a link to {target}, which has images of {same} too: they would get two labels; "
                "remove one of the two (data.root)"
            )
        others[target] = link
        above = dict.fromkeys(target.parents, link) | above


def _raise(error: OSError) -> None:
    raise error


def _load(cached: Path, folder: Path) -> FileIndex | None:
    """Load the cached index; None unless it is complete and still valid."""
    try:
        about = json.loads(read_file(cached / ABOUT))
        with ThreadPoolExecutor(_SCAN_THREADS) as threads:
            marks = list(threads.map(lambda below: list(_marks(folder / below)), about["folders"]))
        if about["format"] != _FORMAT or marks != about["marks"]:
            return None
        classes, others = tuple(map(str, about["classes"])), others_of(about)
        index = FileIndex(folder, classes, **open_file_columns(cached, len(classes)), others=others)
        tell_listed(index, str(about["listed"]), cached)
        return index
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def others_of(about: Mapping[str, Any]) -> dict[str, int]:
    """FileIndex.others from the file of a cached index. Raises ValueError, KeyError, TypeError."""
    return {str(name): int(num) for name, num in dict(about["others"]).items()}


def open_file_columns(cached: Path, num_classes: int) -> dict[str, NDArray[Any]]:
    """The columns of a cached FileIndex, mapped and checked. Raises ValueError for a damaged file."""
    labels = open_column(cached / "labels.npy", np.int32)
    names = open_column(cached / "names.npy", np.uint8)
    name_offsets = open_column(cached / "name_offsets.npy", np.int64, len(labels) + 1)
    check_range(cached / "labels.npy", labels, num_classes - 1)
    check_ends(cached / "name_offsets.npy", name_offsets, len(names))
    columns = {"labels": labels, "names": names, "name_offsets": name_offsets}
    return {name: np.asarray(column) for name, column in columns.items()}  # faster than memmaps, item by item
