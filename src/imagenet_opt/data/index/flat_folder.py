"""Images without classes of their own, as ILSVRC's validation images come, with a list of their classes.

The development kit of ILSVRC2012 numbers the classes, and names the numbers in a MAT-file (MathWorks, "MAT-File
Format", level 5).
"""

import gzip
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_opt.data.index.layout import KIT, NUMBERS, is_image
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.index.tar_members import StreamBytes, members
from imagenet_opt.data.index.webdataset import number_labels
from imagenet_opt.errors import ConfigError, printable
from imagenet_opt.regular_file import open_regular, read_file

log = logging.getLogger(__name__)

_VALIDATION_IMAGE = "ILSVRC2012_val_%08d"
"""Name of an image by its number, from 1."""
_SYNSETS = "meta.mat"
"""File of the kit with the synsets of all numbers."""
_MOST_BYTES = 2**24
_HEADER_BYTES = 128
_COMPRESSED = 15
_CODES = dict(zip((1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 16, 17, 18), "bBhHiIfdqQBHI", strict=True))
"""Types of numbers and text -> their codes in `struct`."""


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
            return {_VALIDATION_IMAGE % number: name for number, name in enumerate(_synsets_of_kit(path), 1)}
        lines = read_file(path.expanduser()).decode("utf-8-sig", "surrogateescape").split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {path} (data.root, val_labels): {reason}") from error
    kaggle = lines[0].startswith("ImageId,")
    in_order = not kaggle and len(lines[0].split()) == 1
    class_of: dict[str, str] = {}
    for number, line in enumerate(lines[kaggle:], 1 + kaggle):
        where = f"{path} (data.root, val_labels), line {number}"
        words = _kaggle_words(line) if kaggle else line.strip().rsplit(maxsplit=1)
        if words and in_order:
            words.insert(0, _VALIDATION_IMAGE % number)
        if words and len(words) != 2:
            expected = "a class" if in_order else "FILE CLASS"
            raise ConfigError(f"{where}: expected {expected}, found {line[:200]!r}")
        if words and class_of.setdefault(os.path.basename(words[0]), words[1]) != words[1]:
            raise ConfigError(f"{where}: {words[0]!r} has another class in an earlier line")
    return class_of


def _kaggle_words(line: str) -> list[str]:
    """File and class of a line. Kaggle lists a class and a box for each object; the first object counts."""
    file, comma, objects = line.strip().partition(",")
    return [file, *objects.split()[:1]] if comma else line.split()


def _synsets_of_kit(place: Path) -> list[str]:
    """The class of each validation image. place: the kit, or `NUMBERS` unpacked beside meta.mat. Raises OSError;
    ValueError for a damaged file."""
    try:
        if place.name == KIT:
            numbers, names = _unpacked(place)
        else:
            numbers, names = (read_file(place.with_name(name)) for name in (NUMBERS, _SYNSETS))
        synset_of = _synsets_by_number(names)
        return [synset_of[int(line)] for line in numbers.split()]
    except (EOFError, LookupError, StopIteration, TypeError, ValueError, struct.error, zlib.error) as error:
        raise ValueError(f"has not {NUMBERS} and {_SYNSETS} of ILSVRC2012; copy it again") from error


def _unpacked(kit: Path) -> list[bytes]:
    found = dict[bytes, bytes]()
    with open(kit, "rb", opener=open_regular) as packed, gzip.open(packed) as file:
        stream = StreamBytes(iter(partial(file.read, 2**20), b""))
        for path, start, size, _ in members(stream.read, 2**40):
            name = path.rpartition(b"/")[2]
            if name in (NUMBERS.encode(), _SYNSETS.encode()) and size <= _MOST_BYTES:
                found[name] = stream.read(start, size)
    return [found[name.encode()] for name in (NUMBERS, _SYNSETS)]


def _synsets_by_number(content: bytes) -> dict[int, str]:
    """Fields of an array of structures, whose cells follow one another by structure."""
    kind, array = next(_elements(content[_HEADER_BYTES:]))
    if kind == _COMPRESSED:
        _, array = next(_elements(zlib.decompressobj().decompress(array, _MOST_BYTES)))
    _, _, _, (_, length), (_, joined), *cells = _elements(array)
    width = int.from_bytes(length, "little")
    fields = [joined[i : i + width].rstrip(b"\0") for i in range(0, len(joined), width)]
    columns = (cells[fields.index(name) :: len(fields)] for name in (b"ILSVRC2012_ID", b"WNID"))
    rows = zip(*([_values(cell) for _, cell in column] for column in columns), strict=True)
    return {int(number): bytes(synset).decode("ascii") for (number,), synset in rows}


def _values(array: bytes) -> tuple[Any, ...]:
    """The numbers or the bytes of an array."""
    _, _, _, (kind, data) = _elements(array)
    code = _CODES[kind]
    return struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and data of each element of a file or an array; a small one has both in eight bytes."""
    at = 0
    while at < len(content):
        kind, size = struct.unpack_from("<II", content, at)
        if kind >> 16:
            yield kind & 0xFFFF, content[at + 4 : at + 4 + (kind >> 16)]
            at += 8
        else:
            yield kind, content[at + 8 : at + 8 + size]
            at += 8 + size + -size % 8
