"""Splits of a folder for each class."""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_opt.data.index.index_cache import listed, load, load_or_make, save
from imagenet_opt.data.index.layout import is_image, kind, numbers, split_folder, unreadable
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.storage.retry import SparseWarnings, retry_transient, tell_once
from imagenet_opt.display.progress import print_once
from imagenet_opt.errors import DataError, DatasetNotFound, EmptyClass, printable

log = logging.getLogger(__name__)
_warn = SparseWarnings(log)

_SCAN_THREADS = 32
_SLOW = 5.0
"""Seconds after which a listing says what it does."""
_PATIENCE = 60.0
"""Seconds for which the listing of a folder is retried."""
_CLOCK_STEP_NS = 2 * 10**9
"""Coarsest step of a file system's times (FAT: 2 s; Lustre: 1 s)."""

Marks = dict[str, tuple[int, int, int]]
"""Folder -> modification time, change time and inode. Unpacking may set the first back, and no program the second."""


def open_split(root: Path | None, split: str, cache_dir: Path) -> Split:
    """Index of `root`/`split`, one folder per class, from the cache when nothing changed.

    The cache is valid while every folder has the marks that it had before the scan listed it: adding, removing or
    renaming a file changes the times of its folder. The index is not cached when a folder changed less than two seconds
    before the scan: a later change could leave the same time, because some file systems keep whole seconds. If several
    processes have one cache folder, one process lists the files and the others wait.

    Raises DatasetNotFound, EmptyClass, DataError.
    """
    folder = split_folder(root, split)

    def make(cached: Path) -> Split:
        started_ns = time.time_ns()
        slow = threading.Timer(_SLOW, print_once, [f"listing {printable(str(folder))}; the list is kept in {cached}"])
        slow.start()
        try:
            split, marks = _scan(folder)
        finally:
            slow.cancel()
            slow.join()
        if max(max(changes) for *changes, _ in marks.values()) < started_ns - _CLOCK_STEP_NS:
            split = save(cached, split, {"folders": list(marks), "marks": list(marks.values())})
        tell_listed(split)
        return split

    def of_cache(cached: Path) -> Split | None:
        found = load(cached, lambda about: _is_current(about, folder))
        if found is not None:
            tell_listed(found, listed(cached), cached)
        return found

    return load_or_make(cache_dir, os.fsencode(folder), of_cache, make)[0]


def tell_listed(split: Split, listed: str = "", cached: Path | None = None) -> None:
    """Say once how many images a data set has: when they were listed, if the list is the one in `cached`; how many
    other files were left out."""
    parts = []
    if cached is not None:
        parts.append(f"as listed on {listed[:16]} UTC; to list them again, remove {cached}")
    if split.others:
        parts.append(f"left out are other files: {numbers(split.others)}")
    if parts:
        tell_once(f"{len(split)} images below {split.place}, {'; '.join(parts)}")


def scan_split(root: Path, split: str) -> Split:
    """Index of `root`/`split` without a cache, see `open_split`."""
    return _scan(split_folder(root, split))[0]


def _scan(folder: Path) -> tuple[Split, Marks]:
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
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), [len(images) for images, _, _ in listed])
    names = joined([os.fsencode(image) for images, _, _ in listed for image in images])
    return Split(place=str(folder), classes=classes, labels=labels, others=others, **names), marks


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


def _is_current(about: Mapping[str, Any], folder: Path) -> bool:
    """Whether every folder has the marks that it had before it was listed."""
    if about["place"] != str(folder):
        return False
    with ThreadPoolExecutor(_SCAN_THREADS) as threads:
        return bool(about["marks"] == list(threads.map(lambda below: list(_marks(folder / below)), about["folders"])))
