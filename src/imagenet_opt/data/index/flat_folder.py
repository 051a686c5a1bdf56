"""Images without classes of their own, as ILSVRC's validation images come, with a list of their classes."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from imagenet_opt.data.index.devkit import KIT, NUMBERS, synsets_of_kit
from imagenet_opt.data.index.layout import is_image
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.index.webdataset import number_labels
from imagenet_opt.errors import ConfigError, printable
from imagenet_opt.regular_file import read_file

log = logging.getLogger(__name__)

_VALIDATION_IMAGE = "ILSVRC2012_val_%08d"
"""Name of an image by its number, from 1."""


def open_flat(folder: Path, list_path: Path) -> Split:
    """The images directly in `folder`, with the classes of a list. Raises ConfigError, see `listed_classes`."""
    names = sorted(entry.name for entry in os.scandir(folder) if is_image(entry.name))
    labels, classes = number_labels(listed_classes(names, list_path, str(folder)), (), str(folder))
    return Split(place=str(folder), classes=classes, labels=labels, **joined(list(map(os.fsencode, names))))


def listed_classes(names: Sequence[str], list_path: Path, place: str) -> list[str]:
    """The class of each image. list_path: Kaggle's list, lines of FILE CLASS, lines with the classes of one validation
    image after the other, or the development kit. place: of the images, for messages.

    Raises ConfigError for a list that cannot be read, or that lacks an image; images that only the list has are told.
    """
    class_of = _read_labels(list_path)
    files = [os.path.basename(name) for name in names]
    found = [class_of.get(file) or class_of.get(os.path.splitext(file)[0]) or "" for file in files]
    if unknown := [file for file, class_name in zip(files, found, strict=True) if not class_name]:
        raise ConfigError(
            f"{list_path} (data.root, val_labels) has no class for {len(unknown)} of {len(files)} images in {place}, "
            f"such as {unknown[0]!r}; complete the list or move those files away"
        )
    if len(files) < len(class_of):
        missing = printable(f"{place} lacks {len(class_of) - len(files)} of the {len(class_of)} images in {list_path}")
        log.warning("%s (data.root): is the archive fully unpacked?", missing)
    return found


def _read_labels(path: Path) -> dict[str, str]:
    """File name, with or without its suffix -> class. Raises ConfigError that names the first malformed line."""
    try:
        if path.name in (KIT, NUMBERS):
            return {_VALIDATION_IMAGE % number: name for number, name in enumerate(synsets_of_kit(path), 1)}
        lines = read_file(path.expanduser()).decode("utf-8-sig", "surrogateescape").split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {path} (data.root, val_labels): {reason}") from error
    kaggle = lines[0].startswith("ImageId,")
    in_order = not kaggle and len(lines[0].split()) == 1
    class_of: dict[str, str] = {}
    for number, line in enumerate(lines[kaggle:], 1 + kaggle):
        words = _kaggle_words(line) if kaggle else line.strip().rsplit(maxsplit=1)
        if words and in_order:
            words.insert(0, _VALIDATION_IMAGE % number)
        if words and len(words) != 2:
            expected = "a class" if in_order else "FILE CLASS"
            raise ConfigError(f"{path} (val_labels), line {number}: expected {expected}, found {line[:200]!r}")
        if words and class_of.setdefault(os.path.basename(words[0]), words[1]) != words[1]:
            raise ConfigError(f"{path} (val_labels), line {number}: {words[0]!r} has another class in an earlier line")
    return class_of


def _kaggle_words(line: str) -> list[str]:
    """File and class of a line. Kaggle lists a class and a box for each object; the first object counts."""
    file, comma, objects = line.strip().partition(",")
    return [file, *objects.split()[:1]] if comma else line.split()
