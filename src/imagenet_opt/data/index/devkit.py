"""Classes of ImageNet's validation images by the development kit of ILSVRC2012, which numbers them, and names the
numbers in a MAT-file (MathWorks, "MAT-File Format", level 5)."""

import gzip
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_opt.data.index.tar_members import StreamBytes, members
from imagenet_opt.regular_file import open_regular, read_file

KIT = "ILSVRC2012_devkit_t12.tar.gz"
NUMBERS, NAMES = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
"""Files of the kit: the number of the class of each image, a line each; and the synsets of all numbers."""
_MOST_BYTES = 2**24
_HEADER_BYTES = 128
_COMPRESSED = 15
_CODES = dict(zip((1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 16, 17, 18), "bBhHiIfdqQBHI", strict=True))
"""Types of numbers and text -> their codes in `struct`."""


def synsets_of_kit(place: Path) -> list[str]:
    """The class of each validation image. place: the kit, or `NUMBERS` unpacked beside `NAMES`. Raises OSError;
    ValueError for a damaged file."""
    try:
        if place.name == KIT:
            numbers, names = _unpacked(place)
        else:
            numbers, names = (read_file(place.with_name(name)) for name in (NUMBERS, NAMES))
        synset_of = _synsets_by_number(names)
        return [synset_of[int(line)] for line in numbers.split()]
    except (EOFError, LookupError, StopIteration, TypeError, ValueError, struct.error, zlib.error) as error:
        raise ValueError(f"has not {NUMBERS} and {NAMES} of ILSVRC2012; copy it again") from error


def _unpacked(kit: Path) -> list[bytes]:
    found = dict[bytes, bytes]()
    with open(kit, "rb", opener=open_regular) as packed, gzip.open(packed) as file:
        stream = StreamBytes(iter(partial(file.read, 2**20), b""))
        for path, start, size, _ in members(stream.read, 2**40):
            name = path.rpartition(b"/")[2]
            if name in (NUMBERS.encode(), NAMES.encode()) and size <= _MOST_BYTES:
                found[name] = stream.read(start, size)
    return [found[name.encode()] for name in (NUMBERS, NAMES)]


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
