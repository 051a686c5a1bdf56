"""Index of a data set's files, as flat arrays that are memory-mapped once cached.

A list of 1.28 million (path, label) tuples would cost each worker hundreds of MB, because reference counts copy its
pages. All workers share flat arrays.
"""

import hashlib
import json
import logging
import os
import posixpath
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.index_cache import ABOUT, alone, check_ends, check_range, open_column, save_columns
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.storage.retry import SparseWarnings, retry_transient
from imagenet_opt.errors import ClassMismatch, DataError, DatasetNotFound, EmptyClass
from imagenet_opt.object_storage import is_url
from imagenet_opt.regular_file import read_file

log = logging.getLogger(__name__)
_warn = SparseWarnings(log)

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
"""Endings of image files, in lower case."""
_MOST_ENTRIES = 50
"""Most entries of a folder that are read for a suggestion: storage may be slow, and a data set large."""
_FORMAT = 2
_SCAN_THREADS = 32
_PATIENCE = 60.0
"""Seconds for which the listing of a folder is retried."""
_CLOCK_STEP_NS = 2 * 10**9
"""Coarsest step of a file system's modification times (FAT: 2 s; Lustre: 1 s)."""


@dataclass(frozen=True)
class FileIndex:
    """Files of one split. labels: int32 (num_samples,). names: uint8, all relative paths joined. name_offsets: int64
    (num_samples + 1,); the path of file i is names[name_offsets[i]:name_offsets[i + 1]]."""

    folder: Path
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    names: NDArray[np.uint8]
    name_offsets: NDArray[np.int64]

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


def root_of(configured: str | None) -> Path | str | None:
    """data.root as a folder or, because a Path would lose a slash, as the text of a URL."""
    if not configured:
        return None
    return configured if is_url(configured) else Path(configured)


def split_url(root: str, split: str) -> str:
    """URL of a split."""
    scheme, _, place = root.partition("://")
    return f"{scheme}://{posixpath.normpath(posixpath.join(place, split))}"


def split_folder(root: Path | None, split: str) -> Path:
    """Folder of a split. Raises DatasetNotFound."""
    if root is None:
        raise DatasetNotFound(f"data.root is not set; expected a folder that holds {split}/<class>/*.JPEG")
    place = root.expanduser()
    folder = (place / split).resolve()
    if folder.is_dir():
        return folder
    expected = f"expected {split}/<class>/*.JPEG in it"
    if not place.is_dir():
        raise DatasetNotFound(f"no folder {root} (data.root); {expected}")
    raise DatasetNotFound(f"no {split}/ under {root} (data.root); {expected}. {_remedy(place, split)}")


def _remedy(root: Path, split: str) -> str:
    """A remedy, according to the content of `root`, which has no folder `split`."""
    here = root.resolve()
    if here.name in ("train", "val") and (here.parent / split).is_dir():
        return f"This is a split itself; did you mean data.root={here.parent}?"
    if (root / "train").is_dir():
        return "Put the validation images there, or name their folder with data.val_folder=FOLDER"
    try:
        with os.scandir(root) as entries:
            below = sorted(entry.name for entry in islice(entries, _MOST_ENTRIES) if entry.is_dir())
    except OSError:
        below = []
    for name in below:
        if (root / name / split).is_dir():
            return f"Found {name}/{split}/; did you mean data.root={root / name}?"
    return (
        "If a folder holds the class folders themselves, split them into train/ and val/ (docs/data.md); to look at "
        "speed only, set data.root to that folder: data.train_folder=. data.val_folder=. trains and validates on the "
        "same images"
    )


def open_split(root: Path | None, split: str, cache_dir: Path) -> FileIndex:
    """Index of `root`/`split`, one folder per class, from the cache when nothing changed.

    The cache is valid while every folder has the modification time that it had before the scan listed it: adding,
    removing or renaming a file changes the time of its folder. The index is not cached when a folder changed less than
    two seconds before the scan: a later change could leave the same time, because some file systems keep whole seconds.
    If several processes have one cache folder, one process lists the files and the others wait.

    Raises DatasetNotFound, EmptyClass, DataError.
    """
    folder = split_folder(root, split)
    cached = cache_dir / "index" / hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]
    index = _load(cached, folder)
    if index is not None:
        return index
    with alone(cache_dir / "locks" / f"{cached.name}.lock"):
        index = _load(cached, folder)  # another process may have listed the folder meanwhile
        if index is None:
            started_ns = time.time_ns()
            index, modified = _scan(folder)
            if max(modified.values()) < started_ns - _CLOCK_STEP_NS:
                columns = {name: getattr(index, name) for name in ("labels", "names", "name_offsets")}
                folders = {"folders": list(modified), "modified": list(modified.values())}
                save_columns(cached, columns, {"format": _FORMAT, "classes": index.classes, **folders}, index.place)
    return index


def scan_split(root: Path, split: str) -> FileIndex:
    """Index of `root`/`split` without a cache, see `open_split`."""
    return _scan(split_folder(root, split))[0]


def check_same_classes(train: Split, val: Split) -> None:
    """Raise ClassMismatch unless both splits have the same class folders."""
    if train.classes == val.classes:
        return

    first, second = (", ".join(sorted(set(a.classes) - set(b.classes))[:3]) for a, b in ((train, val), (val, train)))
    raise ClassMismatch(
        f"{train.place} has {len(train.classes)} classes and {val.place} has {len(val.classes)}; "
        f"only in the first: {first or 'none'}; only in the second: {second or 'none'} (at most three are named). "
        "Both need the same class folders (data.train_folder, data.val_folder); "
        "a flat validation folder must first be sorted into class folders"
    )


def _scan(folder: Path) -> tuple[FileIndex, dict[str, int]]:
    """The index, and the modification time in nanoseconds of each folder below `folder` before it was listed."""
    modified = {"": os.stat(folder).st_mtime_ns}
    entries = [entry for entry in os.scandir(folder) if entry.is_dir()]
    classes = tuple(sorted(entry.name for entry in entries))
    if not classes:
        raise DatasetNotFound(
            f"no class folders in {folder} (data.root, data.train_folder, data.val_folder); expected <class>/*.JPEG"
        )
    _check_links(folder, sorted(Path(entry) for entry in entries if entry.is_symlink()))
    with ThreadPoolExecutor(_SCAN_THREADS) as threads:
        listed = list(threads.map(lambda name: _list(folder, name), classes))
    for name, (images, below) in zip(classes, listed, strict=True):
        if not images:
            raise EmptyClass(f"no images in {folder / name}; remove the folder or put its images back (data.root)")
        modified |= below
    encoded = [os.fsencode(image) for images, _ in listed for image in images]
    index = FileIndex(
        folder,
        classes,
        np.repeat(np.arange(len(classes), dtype=np.int32), [len(images) for images, _ in listed]),
        np.frombuffer(b"".join(encoded), dtype=np.uint8),
        np.cumsum([0, *map(len, encoded)], dtype=np.int64),
    )
    return index, modified


def _list(folder: Path, class_name: str) -> tuple[list[str], dict[str, int]]:
    """Sorted relative paths of the images in one class folder, and modification times of all folders in it. Raises
    DataError."""
    try:
        return retry_transient(lambda: _images_below(folder, class_name), str(folder / class_name), _PATIENCE)
    except OSError as error:
        raise DataError(f"cannot list {error.filename}: {error.strerror}; make it readable (data.root)") from error


def _images_below(folder: Path, class_name: str) -> tuple[list[str], dict[str, int]]:
    images, modified = [], {class_name: os.stat(folder / class_name).st_mtime_ns}
    for place, below, names in os.walk(folder / class_name, onerror=_raise):
        below.sort()
        relative = os.path.relpath(place, folder)
        for name in below:  # os.walk lists these folders later, unless they are links
            modified[os.path.join(relative, name)] = os.stat(os.path.join(place, name)).st_mtime_ns
            if os.path.islink(os.path.join(place, name)):
                _warn(f"{place}/{name} is not followed: below a class, links to folders are ignored (data.root)")
        images += [os.path.join(relative, name) for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    return sorted(images), modified


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
            modified = list(threads.map(lambda below: os.stat(folder / below).st_mtime_ns, about["folders"]))
        if about["format"] != _FORMAT or modified != about["modified"]:
            return None
        classes = tuple(map(str, about["classes"]))
        return FileIndex(folder, classes, **open_file_columns(cached, len(classes)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def open_file_columns(cached: Path, num_classes: int) -> dict[str, NDArray[Any]]:
    """The columns of a cached FileIndex, mapped and checked. Raises ValueError for a damaged file."""
    labels = open_column(cached / "labels.npy", np.int32)
    names = open_column(cached / "names.npy", np.uint8)
    name_offsets = open_column(cached / "name_offsets.npy", np.int64, len(labels) + 1)
    check_range(cached / "labels.npy", labels, num_classes - 1)
    check_ends(cached / "name_offsets.npy", name_offsets, len(names))
    columns = {"labels": labels, "names": names, "name_offsets": name_offsets}
    return {name: np.asarray(column) for name, column in columns.items()}  # faster than memmaps, item by item
