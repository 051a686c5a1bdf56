"""Splits of a folder for each class."""

import logging
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from imagenet_opt.data.index.index_cache import Mark, Marks, mark, open_kept
from imagenet_opt.data.index.layout import is_image, kind, split_folder, unreadable
from imagenet_opt.data.index.split import Split, joined, numbers
from imagenet_opt.data.storage.retry import SparseWarnings, retry_transient
from imagenet_opt.display.progress import print_once
from imagenet_opt.errors import DataError, DatasetNotFound, EmptyClass, printable

log = logging.getLogger(__name__)
_warn = SparseWarnings(log)

_SCAN_THREADS = 32
_SLOW = 5.0
"""Seconds after which a listing says what it does."""
_PATIENCE = 60.0
"""Seconds for which the listing of a folder is retried."""


def open_split(folder: Path, cache_dir: Path) -> Split:
    """The images of `folder`, which has a folder for each class. Adding, removing or renaming a file changes the mark
    of its folder. Raises DatasetNotFound, EmptyClass, DataError."""
    return open_kept(cache_dir, str(folder), partial(_scan, folder))


def scan_split(root: Path, split: str) -> Split:
    """Index of `root`/`split` without a cache, see `open_split`."""
    return _scan(split_folder(root, split))[0]


def _scan(folder: Path) -> tuple[Split, Marks]:
    """The split, and the marks of each folder before it was listed. A listing that takes long says what it does."""
    slow = threading.Timer(_SLOW, print_once, [f"listing {printable(str(folder))}"])
    slow.start()
    try:
        return _listed(folder)
    finally:
        slow.cancel()
        slow.join()


def _listed(folder: Path) -> tuple[Split, Marks]:
    marks, others = {str(folder): mark(folder)}, Counter[str]()
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


def _list(folder: Path, class_name: str) -> tuple[list[str], Counter[str], dict[str, Mark]]:
    """Sorted relative paths of the images in one class folder, kinds of its other files, and marks of all folders in
    it. Raises DataError."""
    try:
        return retry_transient(lambda: _images_below(folder, class_name), str(folder / class_name), _PATIENCE)
    except OSError as error:
        raise unreadable(error) from error


def _images_below(folder: Path, class_name: str) -> tuple[list[str], Counter[str], dict[str, Mark]]:
    top = os.path.join(folder, class_name)
    images, others, marks = list[str](), Counter[str](), {top: mark(top)}
    for place, below, names in os.walk(top, onerror=_raise):
        below.sort()
        relative = os.path.relpath(place, folder)
        for name in below:  # os.walk lists these folders later, unless they are links
            path = os.path.join(place, name)
            marks[path] = mark(path)
            if os.path.islink(path):
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
