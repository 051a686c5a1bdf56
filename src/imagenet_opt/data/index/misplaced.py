"""Guesses where the images of a split are if they are not below data.root."""

import os
from itertools import islice
from pathlib import Path

from imagenet_opt.data.index.image_suffixes import IMAGE_SUFFIXES

_LOOKED_AT = 50
"""Entries of a folder: storage may be slow, and a data set large."""


def remedy(root: Path, split: str) -> str:
    """What to change, judged by the content of `root`, which has no folder `split`."""
    below = [folder for folder in _folders(root) if folder.name != split]
    for folder in below:
        if (folder / split).is_dir():
            return f"Found {folder.name}/{split}/; did you mean data.root={folder}?"
    trees = [folder for folder in below if _holds_classes(folder)]
    if split != "train" and (root / "train").is_dir():
        others = [folder.name for folder in trees if folder.name != "train"]
        if others:
            return f"Found {others[0]}/ with class folders; did you mean data.val_folder={others[0]}?"
        return "Put the validation images there, or name their folder with data.val_folder=FOLDER"
    one_folder = "data.train_folder=. data.val_folder=."
    if trees:
        return f"Found {trees[0].name}/ with class folders; did you mean data.root={trees[0]} {one_folder}?"
    return f"Class folders directly under it? Add {one_folder}"


def _holds_classes(folder: Path) -> bool:
    return any(_holds_images(below) for below in _folders(folder))


def _holds_images(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in islice(entries, _LOOKED_AT))
    except OSError:
        return False


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in islice(entries, _LOOKED_AT) if entry.is_dir())
    except OSError:
        return []
