"""Finds the folder of a split below data.root, and suggests a remedy if the folder is missing."""

import os
import posixpath
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from imagenet_opt.errors import DatasetNotFound
from imagenet_opt.object_storage import is_url

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
"""Endings of image files, in lower case."""
_MOST_ENTRIES = 50
"""Most entries of a folder that are read for a suggestion: storage may be slow, and a data set large."""


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
    below = [folder for folder in _folders(root) if folder.name != split]
    for folder in below:
        if (folder / split).is_dir():
            return f"Found {folder.name}/{split}/; did you mean data.root={folder}?"
    trees = [folder for folder in below if any(map(_holds_images, _folders(folder)))]
    if (root / "train").is_dir():
        return "Put the validation images there, or name their folder with data.val_folder=FOLDER"
    one_folder = "data.train_folder=. data.val_folder=."
    if trees:
        return f"Found {trees[0].name}/ with class folders; did you mean data.root={trees[0]} {one_folder}?"
    return (
        f"If the class folders are directly in {root}, split them into train/ and val/ (docs/data.md); to look at "
        f"speed only, {one_folder} trains and validates on the same images"
    )


def _holds_images(folder: Path) -> bool:
    return bool(_entries(folder, lambda entry: entry.name.lower().endswith(IMAGE_SUFFIXES)))


def _folders(folder: Path) -> list[Path]:
    return sorted(map(Path, _entries(folder, lambda entry: entry.is_dir())))


def _entries(folder: Path, keep: Callable[[os.DirEntry[str]], bool]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in islice(entries, _MOST_ENTRIES) if keep(entry)]
    except OSError:
        return []
