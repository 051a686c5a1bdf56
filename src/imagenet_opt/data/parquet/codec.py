"""Decompresses the pages of Parquet files, by pyarrow, and unpacks their numbers."""

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.parquet.file import ParquetError, damaged
from imagenet_opt.errors import ConfigError

Numbers = NDArray[np.int64]

_READ = ("snappy", "gzip", "zstd", "brotli", "lz4_raw")
_MOST_WIDTH = 32
_GROUPS = 2**12
"""Groups of eight numbers that are unpacked together."""


def decompressed(content: bytes, codec: str, size: int) -> bytes:
    """`size` bytes. Raises ParquetError; ConfigError without pyarrow."""
    if codec not in _READ:
        raise ParquetError(f"is compressed with {codec}, which is not read; write it with another compression")
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise ConfigError(
            "compressed Parquet files (data.root) need a package that is not installed: pip install "
            '"imagenet-opt[parquet]"'
        ) from error
    try:
        found = pyarrow.Codec(codec).decompress(content, size, asbytes=True) if size else b""
    except (OSError, ValueError) as error:
        raise damaged("a page cannot be decompressed") from error
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
