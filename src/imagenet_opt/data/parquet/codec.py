"""Decompresses the pages of Parquet files, and unpacks their numbers; nothing can become larger than a header says."""

import zlib

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.parquet.footer import ParquetError, damaged

Numbers = NDArray[np.int64]

_MOST_WIDTH = 32
_GROUPS = 2**12
"""Groups of eight numbers that are unpacked together."""
_WITH_PYARROW = ("zstd", "brotli", "lz4_raw")


def decompressed(content: bytes, codec: str, size: int) -> bytes:
    """`size` bytes. Raises ParquetError."""
    if codec == "snappy":
        return unsnapped(content, size)
    if codec == "gzip":
        return _inflated(content, size)
    if codec not in _WITH_PYARROW:
        raise ParquetError(f"is compressed with {codec}, which is not read; write it with another compression")
    try:
        import pyarrow
    except ImportError as error:
        raise ParquetError(f"is compressed with {codec}: pip install 'imagenet-opt[parquet]'") from error
    try:
        return bytes(pyarrow.Codec(codec).decompress(content, size, asbytes=True))
    except (OSError, ValueError) as error:
        raise damaged("a page cannot be decompressed") from error


def _inflated(content: bytes, size: int) -> bytes:
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # with a header of gzip or of zlib
    try:
        found = stream.decompress(content, size) if size else b""
    except zlib.error as error:
        raise damaged("a page cannot be decompressed") from error
    if len(found) != size:
        raise damaged(f"a page has {len(found)} bytes, not {size}")
    return found


def unsnapped(content: bytes, size: int) -> bytes:
    """Snappy's raw format (github.com/google/snappy, format_description.txt). It is made of pieces of up to 64 KiB:
    new bytes, which is nearly all of an image, and copies of earlier ones."""
    found, at = bytearray(), 0
    try:
        while content[at] > 127:  # size, which the header of the page says too
            at += 1
        at += 1
        while at < len(content) and len(found) <= size:
            tag, at = content[at], at + 1
            if tag & 3 == 0:
                length, at = tag >> 2, at
                if (more := length - 59) > 0:
                    length, at = int.from_bytes(content[at : at + more], "little"), at + more
                found += content[at : at + length + 1]
                at += length + 1
                continue
            if tag & 3 == 1:
                length, back, at = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | content[at], at + 1
            else:
                num = 2 if tag & 3 == 2 else 4
                length, back, at = (tag >> 2) + 1, int.from_bytes(content[at : at + num], "little"), at + num
            if not 0 < back <= len(found):
                raise damaged("a page cannot be decompressed")
            start = len(found) - back
            piece = found[start : start + length]
            found += piece if back >= length else (piece * length)[:length]
    except IndexError:
        found.clear()
    if len(found) != size:
        raise damaged(f"a page has {len(found)} bytes, not {size}")
    return bytes(found)


def runs(content: bytes, width: int, num: int) -> Numbers:
    """`num` numbers of `width` bits, as runs of a number or as groups of eight (Parquet's RLE/bit-packing hybrid)."""
    if width > _MOST_WIDTH:
        raise damaged(f"numbers of a page have {width} bits")
    numbers, done, at = np.zeros(num, np.int64), 0, 0
    try:
        while done < num and width:
            header, at = _varint(content, at)
            if not header >> 1:
                raise damaged("a run of a page is empty")
            if header & 1:
                groups = min(header >> 1, -(-(num - done) // 8))
                for first in range(0, groups, _GROUPS):
                    found = _grouped(content, at + first * width, min(_GROUPS, groups - first), width)[: num - done]
                    numbers[done : done + len(found)] = found
                    done += len(found)
                at += (header >> 1) * width
            else:
                size = -(-width // 8)
                numbers[done : done + (header >> 1)] = int.from_bytes(content[at : at + size], "little")
                done, at = done + (header >> 1), at + size
    except (IndexError, ValueError, OverflowError) as error:
        raise damaged("a page is shorter than its values") from error
    return numbers


def _grouped(content: bytes, at: int, groups: int, width: int) -> Numbers:
    bits = np.unpackbits(np.frombuffer(content, np.uint8, groups * width, at), bitorder="little")
    found: Numbers = bits.reshape(-1, width) @ (1 << np.arange(width))
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        value |= (content[at] & 127) << shift
        at += 1
        if content[at - 1] < 128:
            return value, at
    raise IndexError
