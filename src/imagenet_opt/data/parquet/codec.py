"""Decompresses the pages of Parquet files; a page cannot become larger than its header says."""

import zlib

from imagenet_opt.data.parquet.footer import ParquetError, damaged

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
