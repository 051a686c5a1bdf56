"""Splits of a folder of images with a list of their classes, as ILSVRC's validation images come."""

import logging
import os
from pathlib import Path

import numpy as np

from imagenet_opt.data.index.layout import is_image
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.errors import ConfigError, printable
from imagenet_opt.regular_file import read_file

log = logging.getLogger(__name__)


def open_flat(folder: Path, list_path: Path) -> Split:
    """The images directly in `folder`, with the classes of a list: Kaggle's, or lines of FILE CLASS. Raises ConfigError
    for a list that cannot be read, or that lacks an image; images that only the list has are told."""
    class_of = _read_labels(list_path)
    names = sorted(entry.name for entry in os.scandir(folder) if is_image(entry.name))
    class_names = [class_of.get(name) or class_of.get(os.path.splitext(name)[0]) for name in names]
    if unknown := [name for name, class_name in zip(names, class_names, strict=True) if class_name is None]:
        raise ConfigError(
            f"{list_path} (val_labels) has no class for {len(unknown)} of {len(names)} images in {folder}, "
            f"such as {unknown[0]!r}; complete the list or move those files away"
        )
    if len(names) < len(class_of):
        missing = printable(f"{folder} lacks {len(class_of) - len(names)} of the {len(class_of)} images in {list_path}")
        log.warning("%s (data.root): is the archive fully unpacked?", missing)
    classes = tuple(sorted(set(map(str, class_names))))
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[str(name)] for name in class_names], np.int32)
    return Split(place=str(folder), classes=classes, labels=labels, **joined(list(map(os.fsencode, names))))


def _read_labels(path: Path) -> dict[str, str]:
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
