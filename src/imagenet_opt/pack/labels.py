"""Reads lists with the class of each image of a flat folder."""

import os
from pathlib import Path

from imagenet_opt.errors import ConfigError
from imagenet_opt.regular_file import read_file

_LIST = "LOC_val_solution.csv"


def find_labels(folder: Path) -> Path:
    for place in (folder, *list(folder.parents)[:4]):
        if (place / _LIST).is_file():
            return place / _LIST
    raise ConfigError(
        f"{folder} has images but no class folders, and no {_LIST} in it or its parents; give a list of the classes "
        "with val_labels=FILE (Kaggle's list, or lines of FILE CLASS)"
    )


def read_labels(path: Path) -> dict[str, str]:
    """File name, with or without its suffix -> class. Raises ConfigError that names the first malformed line."""
    try:
        lines = read_file(path.expanduser()).decode("utf-8-sig", "surrogateescape").split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path} (val_labels): {error.strerror}") from error
    kaggle = lines[0].startswith("ImageId,")
    class_of: dict[str, str] = {}
    for number, line in enumerate(lines[kaggle:], 1 + kaggle):
        words = _kaggle_words(line) if kaggle else line.strip().rsplit(maxsplit=1)
        if words and len(words) != 2:
            raise ConfigError(f"{path} (val_labels), line {number}: expected FILE CLASS, found {line[:200]!r}")
        if words and class_of.setdefault(os.path.basename(words[0]), words[1]) != words[1]:
            raise ConfigError(f"{path} (val_labels), line {number}: {words[0]!r} has another class in an earlier line")
    return class_of


def _kaggle_words(line: str) -> list[str]:
    """File and class of a line. Kaggle lists a class and a box for each object; the first object counts."""
    file, comma, objects = line.strip().partition(",")
    return [file, *objects.split()[:1]] if comma else line.split()
