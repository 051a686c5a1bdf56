"""Reads the pages of a column of a Parquet file: the places of its values, if they are not compressed, or the values
(github.com/apache/parquet-format, README and Encodings).

A page is a header, the levels, which say what is null, and the values or their numbers in the dictionary, which is the
first page of a chunk. A value of bytes is its length, 4 bytes, and its content. pyarrow decompresses pages.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.parquet.file import ParquetError, ParquetFile, damaged
from imagenet_opt.data.parquet.footer import BYTE_ARRAY, INT32, Chunk
from imagenet_opt.data.parquet.thrift import Struct, ThriftError, read_struct
from imagenet_opt.errors import ConfigError
from imagenet_opt.regular_file import MOST_BYTES, check_size

Numbers = NDArray[np.int64]

_READ = ("snappy", "gzip", "zstd", "brotli", "lz4_raw")
_MOST_WIDTH = 32
_GROUPS = 2**12
"""Groups of eight numbers that are unpacked together."""
_MOST_HEADER = 2**15
"""Bytes of the largest header of a page, which may have four values of 4 KiB; most have 30."""
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_ABOUT = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}
"""Kind of a page -> field of its header that describes it."""
_PLAIN, _RLE, _IN_DICTIONARY = 0, 3, (2, 8)
"""Encodings."""
_MOST_SIZE = 2**31 - 1
_LENGTH = 4


class _Page(NamedTuple):
    """num_values: with nulls. start, end: place of the body in the file. unpacked: size of the body before it was
    compressed. levels: of a data page of version 2, sizes of its levels, which are never compressed; None: version 1,
    whose levels begin with their size. is_packed: whether the rest is compressed."""

    num_values: int
    is_dictionary: bool
    is_plain: bool
    start: int
    end: int
    unpacked: int
    levels: tuple[int, int] | None
    is_packed: bool


def places(file: ParquetFile, chunk: Chunk) -> Numbers:
    """int64 (2, num_rows): offset in the file and size of each value of a chunk that is not compressed; size -1 for
    null. Raises ParquetError, OSError."""
    found, done, dictionary = np.full((2, chunk.num_rows), -1, np.int64), 0, np.empty((2, 0), np.int64)
    for page in _pages(file, chunk):
        if page.is_dictionary:
            dictionary = _hop(file, page.start, page.end, page.num_values)
            continue
        head = file.read(page.start, _head_bytes(file, page, chunk) if page.is_plain else page.end - page.start)
        present, begin = _present(page, head, chunk.column.max_definition)
        rows = done + np.flatnonzero(present)
        if page.is_plain:
            found[:, rows] = _hop(file, page.start + begin, page.end, len(rows))
        else:
            found[:, rows] = _looked_up(dictionary, head[begin:], len(rows))
        done += page.num_values
    return found


def values(file: ParquetFile, chunk: Chunk, rows: Numbers | None = None, most_bytes: int = MOST_BYTES) -> NDArray[Any]:
    """(num_rows,) numbers or bytes as objects, None for null. rows: only these, ascending. In memory are besides the
    dictionary and one page, and of a remote file the chunk. Raises ParquetError, also for more than `most_bytes`;
    OSError."""
    if file.is_remote:
        file.read(chunk.start, chunk.end - chunk.start)  # with one request
    rows = np.arange(chunk.num_rows) if rows is None else rows
    found, end, dictionary = [np.empty(0, object)], 0, np.empty(0, object)
    for page in _pages(file, chunk):
        if page.is_dictionary:
            dictionary = _plain(_unpacked(file, page, chunk), page.num_values, chunk.column.type)
            continue
        begin, end = end, end + page.num_values
        if len(inside := rows[slice(*np.searchsorted(rows, (begin, end)))] - begin):
            found.append(_values(file, page, chunk, dictionary)[inside])
            most_bytes -= sum(len(value) for value in found[-1] if isinstance(value, bytes))
        if most_bytes < 0:
            raise damaged("its values need much more memory than the file has bytes")
        if end > rows[-1]:
            break
    return np.concatenate(found)


def _values(file: ParquetFile, page: _Page, chunk: Chunk, dictionary: NDArray[Any]) -> NDArray[Any]:
    content = _unpacked(file, page, chunk)
    present, begin = _present(page, content, chunk.column.max_definition)
    found, num = np.full(page.num_values, None), int(present.sum())
    is_plain, content = page.is_plain, content[begin:]
    found[present] = _plain(content, num, chunk.column.type) if is_plain else _looked_up(dictionary, content, num)
    return found


def _pages(file: ParquetFile, chunk: Chunk) -> Iterator[_Page]:
    """All pages; their data pages have num_rows values."""
    at, left = chunk.start, chunk.num_rows
    while left:
        try:
            header, size = read_struct(file.read(at, min(_MOST_HEADER, chunk.end - at)))
            page = _page(header, at + size)
        except (IndexError, ThriftError) as error:
            raise damaged(f"the header of a page cannot be read ({error})") from error
        if page.end > chunk.end:
            raise damaged("a page is longer than its column")
        if page.is_dictionary and at != chunk.start:
            raise damaged("a dictionary is not the first page")
        if not page.is_dictionary:
            if not 0 < page.num_values <= left:
                raise damaged(f"a page has {page.num_values} of {left} values")
            left -= page.num_values
        yield page
        at = page.end


def _page(header: Struct, start: int) -> _Page:
    kind, size, unpacked = (header.number(field, _MOST_SIZE) for field in (1, 3, 2))
    about = header.struct(_ABOUT.get(kind, 0))
    num_values, encoding = about.number(1, _MOST_SIZE), about.number(4 if kind == _DATA_2 else 2, _MOST_SIZE)
    if encoding not in (_PLAIN, *_IN_DICTIONARY) or (kind == _DATA and about.get(3) != _RLE):
        raise ParquetError(
            f"has pages of encoding {encoding}, which are not read; write it with pyarrow or with another version of "
            "the format"
        )
    levels = (about.number(6, size), about.number(5, size)) if kind == _DATA_2 else None
    if (kind == _DICTIONARY and num_values > unpacked // _LENGTH) or sum(levels or ()) > min(size, unpacked):
        raise damaged("a page is shorter than its values")
    is_packed = kind != _DATA_2 or about.get(7, True) is not False
    return _Page(num_values, kind == _DICTIONARY, encoding == _PLAIN, start, start + size, unpacked, levels, is_packed)


def _head_bytes(file: ParquetFile, page: _Page, chunk: Chunk) -> int:
    """Bytes before the values of a page that is not compressed."""
    if page.levels is not None or not chunk.column.max_definition:
        return sum(page.levels or ())
    return min(page.end - page.start, _LENGTH + int.from_bytes(file.read(page.start, _LENGTH), "little"))


def _present(page: _Page, body: bytes, most: int) -> tuple[NDArray[np.bool_], int]:
    """Which values are not null, and where in the body the values begin. most: level of a value."""
    if page.levels is not None:
        begin, end = page.levels[0], sum(page.levels)
    else:
        begin, end = (_LENGTH, _LENGTH + int.from_bytes(body[:_LENGTH], "little")) if most else (0, 0)
    if end > len(body):
        raise damaged("a page is shorter than its levels")
    return _runs(body[begin:end], most.bit_length(), page.num_values) == most, end


def _unpacked(file: ParquetFile, page: _Page, chunk: Chunk) -> bytes:
    """The body of a page as it was before it was compressed."""
    body = file.read(page.start, page.end - page.start)
    if not page.is_packed or not chunk.codec:
        return body
    plain = sum(page.levels or ())
    check_size(page.unpacked)
    return body[:plain] + _decompressed(body[plain:], chunk.codec, page.unpacked - plain)


def _plain(content: bytes, num: int, type_: int) -> NDArray[Any]:
    """`num` values: numbers, or bytes as objects."""
    if type_ != BYTE_ARRAY:
        number = np.dtype("<i4" if type_ == INT32 else "<i8")
        if num * number.itemsize > len(content):
            raise damaged("a page is shorter than its values")
        return np.frombuffer(content, number, num)
    found, at = np.empty(num, object), 0
    for i in range(num):
        start = at + _LENGTH
        at = start + int.from_bytes(content[at:start], "little")
        if not start <= at <= len(content):
            raise damaged("a value is longer than its page")
        found[i] = content[start:at]
    return found


def _hop(file: ParquetFile, at: int, end: int, num: int) -> Numbers:
    """int64 (2, num): offset in the file and size of each of the values that lie between two places of the file."""
    found = list[tuple[int, int]]()
    for _ in range(num):
        start = at + _LENGTH
        size = int.from_bytes(file.read(at, _LENGTH), "little") if start <= end else 0
        at = start + size
        if at > end:
            raise damaged("a value is longer than its page")
        found.append((start, size))
    return np.array(found, np.int64).reshape(num, 2).T


def _looked_up(dictionary: NDArray[Any], content: bytes, num: int) -> NDArray[Any]:
    """`num` values of a dictionary: its last axis has the values. content: bits of a number, then the numbers."""
    if not num:
        return dictionary[..., :0]
    numbers = _runs(content[1:], content[0] if content else 0, num)
    if numbers.max() >= dictionary.shape[-1]:
        raise damaged("a page names a value that its dictionary does not have")
    return dictionary[..., numbers]


def _decompressed(content: bytes, codec: str, size: int) -> bytes:
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


def _runs(content: bytes, width: int, num: int) -> Numbers:
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
