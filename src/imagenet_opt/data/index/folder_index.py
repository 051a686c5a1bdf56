"""Splits of a folder for each class."""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_opt.data.index.index_cache import Mark, Marks, mark, open_kept, scan_each
from imagenet_opt.data.index.layout import is_image, kind, split_folder, unreadable
from imagenet_opt.data.index.split import Split, joined, numbers
from imagenet_opt.data.storage.retry import OPENING_SECONDS, SparseWarnings, retry_transient
from imagenet_opt.errors import DataError, DatasetNotFound, EmptyClass

log = logging.getLogger(__name__)
_warn = SparseWarnings(log)

SCAN_THREADS = 32


def open_split(folder: Path, cache_dir: Path) -> Split:
    """The images of `folder`, which has a folder for each class. Adding, removing or renaming a file changes the mark
    of its folder. Raises DatasetNotFound, EmptyClass, DataError."""
    return open_kept(cache_dir, str(folder), partial(_scan, folder))


def scan_split(root: Path, split: str) -> Split:
    """Index of `root`/`split` without a cache, see `open_split`."""
    return _scan(split_folder(root, split))[0]


def _scan(folder: Path) -> tuple[Split, Marks]:
    """The split, and the marks of each folder before it was listed."""
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
    listed = scan_each("class folders", classes, partial(_list, folder), num_threads=SCAN_THREADS)
    found = {name: (images, of_class) for name, (images, of_class, _) in zip(classes, listed, strict=True)}
    for _, _, below in listed:
        marks |= below
    return split_of_classes(str(folder), found, others), marks


def split_of_classes(
    place: str, found: Mapping[str, tuple[Sequence[bytes], Counter[str]]], others: Counter[str], **columns: Any
) -> Split:
    """The split of class folders. found: class -> names of its images below `place`, and kinds of its other files.
    others: kinds of files outside of classes. columns: further columns. Raises EmptyClass."""
    for class_name, (images, of_class) in found.items():
        if not images:
            has = f", but {numbers(of_class)}, which are not read" if of_class else ""
            raise EmptyClass(
                f"no images in {place}/{class_name}{has}; put images there, or remove the folder (data.root): a "
                "class may be absent from the validation images"
            )
    lengths = [len(images) for images, _ in found.values()]
    return Split(
        place=place,
        classes=tuple(found),
        labels=np.repeat(np.arange(len(found), dtype=np.int32), lengths),
        **joined([image for images, _ in found.values() for image in images]),
        others=sum((of_class for _, of_class in found.values()), others),
        **columns,
    )


def _list(folder: Path, class_name: str) -> tuple[list[bytes], Counter[str], dict[str, Mark]]:
    """Sorted relative paths of the images in one class folder, kinds of its other files, and marks of all folders in
    it. Raises DataError."""
    try:
        return retry_transient(lambda: _images_below(folder, class_name), str(folder / class_name), OPENING_SECONDS)
    except OSError as error:
        raise unreadable(error) from error


def _images_below(folder: Path, class_name: str) -> tuple[list[bytes], Counter[str], dict[str, Mark]]:
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
    return [os.fsencode(image) for image in sorted(images)], others, marks


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
