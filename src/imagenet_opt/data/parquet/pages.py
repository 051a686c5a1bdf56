"""Reads the pages of a column of a Parquet file: the places of its values, if they are not compressed, or the values
(github.com/apache/parquet-format, README and Encodings).

A page is a header, the levels, which say what is null, and the values or their numbers in the dictionary, which is the
first page of a chunk. A value of bytes is its length, 4 bytes, and its content.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.parquet.codec import Numbers, decompressed, runs
from imagenet_opt.data.parquet.footer import BYTE_ARRAY, INT32, Chunk, ParquetError, damaged
from imagenet_opt.data.parquet.thrift import Struct, ThriftError, read_struct
from imagenet_opt.regular_file import MOST_BYTES, check_size, read_part

_HEADERS = (512, 2**17)
"""Bytes that are read for a header: most have 30, one with the smallest and the largest value of the page has many."""
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_ABOUT = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}
"""Kind of a page -> field of its header that describes it."""
_PLAIN, _OLD_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_ENCODINGS = {4: "BIT_PACKED", 5: "DELTA_BINARY_PACKED", 6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY"}
_DICTIONARIES = (_OLD_DICTIONARY, _RLE_DICTIONARY)
_MOST_SIZE = 2**31 - 1
_LENGTH = 4
_SPARSE, _WINDOW = 2**14, 2**16
"""From this mean size of values on only their lengths are read; else windows of this size."""


@dataclass(frozen=True)
class _Page:
    """num_values: with nulls. start, size: place of the body in the file. levels: of a data page of version 2, sizes of
    its levels; None: version 1, whose levels begin with their size. unpacked: size of the body before it was
    compressed. is_packed: whether it was; levels of version 2 never are."""

    num_values: int
    is_dictionary: bool
    is_plain: bool
    start: int
    size: int
    unpacked: int
    levels: tuple[int, int] | None = None
    is_packed: bool = True


class ColumnPages:
    """The values of a column in one row group. descriptor: of the file."""

    def __init__(self, descriptor: int, chunk: Chunk) -> None:
        self.descriptor, self.chunk = descriptor, chunk

    def places(self) -> Numbers:
        """int64 (2, num_rows): offset in the file and size of each value; size -1 for null. Raises ParquetError,
        OSError."""
        places, done, dictionary = np.full((2, self.chunk.num_rows), -1, np.int64), 0, _EMPTY
        for page in self._pages():
            if page.is_dictionary:
                dictionary = self._hop(page.start, page.start + page.size, page.num_values)
                continue
            head = self._read(page.start, self._head_bytes(page) if page.is_plain else page.size)
            present, begin = self._present(page, head)
            rows = done + np.flatnonzero(present)
            if page.is_plain:
                places[:, rows] = self._hop(page.start + begin, page.start + page.size, len(rows))
            else:
                places[:, rows] = _looked_up(dictionary, head[begin:], len(rows))
            done += page.num_values
        return places

    def values(self, rows: Numbers | None = None, most_bytes: int = MOST_BYTES) -> NDArray[Any]:
        """(num_rows,) numbers or bytes as objects, None for null. rows: only these, ascending. In memory are besides
        the dictionary and one page. Raises ParquetError, also for more than `most_bytes`; OSError."""
        rows = np.arange(self.chunk.num_rows) if rows is None else rows
        found, end, dictionary, left = [_EMPTY.astype(object)], 0, _EMPTY, most_bytes
        for page in self._pages():
            if page.is_dictionary:
                dictionary = self._plain(self._unpacked(page), page.num_values)
                continue
            begin, end = end, end + page.num_values
            if len(inside := rows[slice(*np.searchsorted(rows, (begin, end)))] - begin):
                found.append(self._values(page, dictionary)[inside])
                left -= sum(len(value) for value in found[-1] if isinstance(value, bytes))
            if left < 0:
                raise damaged("its values need much more memory than the file has bytes")
            if end > rows[-1]:
                break
        return np.concatenate(found)

    def _values(self, page: _Page, dictionary: NDArray[Any]) -> NDArray[Any]:
        content = self._unpacked(page)
        present, begin = self._present(page, content)
        values, num = np.full(page.num_values, None), int(present.sum())
        if page.is_plain:
            values[present] = self._plain(content[begin:], num)
        else:
            values[present] = _looked_up(dictionary, content[begin:], num)
        return values

    def _pages(self) -> Iterator[_Page]:
        """All pages; their data pages have num_rows values."""
        at, left = self.chunk.start, self.chunk.num_rows
        while left:
            header, size = self._header(at)
            page = _page(header, at + size)
            if page.size > self.chunk.end - page.start:
                raise damaged("a page is longer than its column")
            if page.is_dictionary and at != self.chunk.start:
                raise damaged("a dictionary is not the first page")
            if not page.is_dictionary:
                if not 0 < page.num_values <= left:
                    raise damaged(f"a page has {page.num_values} of {left} values")
                left -= page.num_values
            yield page
            at = page.start + page.size

    def _header(self, at: int) -> tuple[Struct, int]:
        for size in _HEADERS:
            try:
                return read_struct(self._read(at, min(size, self.chunk.end - at)))
            except IndexError:
                continue
            except ThriftError as error:
                raise damaged(f"the header of a page cannot be read ({error})") from error
        raise damaged("the header of a page is incomplete")

    def _head_bytes(self, page: _Page) -> int:
        """Bytes before the values of a page that is not compressed."""
        if page.levels is not None:
            return sum(page.levels)
        if not self.chunk.column.max_definition:
            return 0
        return min(page.size, _LENGTH + int.from_bytes(self._read(page.start, min(_LENGTH, page.size)), "little"))

    def _present(self, page: _Page, body: bytes) -> tuple[NDArray[np.bool_], int]:
        """Which values are not null, and where in the body the values begin."""
        most = self.chunk.column.max_definition
        if page.levels is not None:
            begin, end = page.levels[0], sum(page.levels)
        else:
            begin, end = (_LENGTH, _LENGTH + int.from_bytes(body[:_LENGTH], "little")) if most else (0, 0)
        if end > len(body):
            raise damaged("a page is shorter than its levels")
        levels = runs(body[begin:end], most.bit_length(), page.num_values)
        return levels == most, end

    def _unpacked(self, page: _Page) -> bytes:
        """The body of a page as it was before it was compressed."""
        body = self._read(page.start, page.size)
        if not page.is_packed or self.chunk.codec == "uncompressed":
            return body
        plain = sum(page.levels or ())
        check_size(page.unpacked)
        return body[:plain] + decompressed(body[plain:], self.chunk.codec, page.unpacked - plain)

    def _plain(self, content: bytes, num: int) -> NDArray[Any]:
        """`num` values: numbers, or bytes as objects."""
        if self.chunk.column.type != BYTE_ARRAY:
            number = np.dtype("<i4" if self.chunk.column.type == INT32 else "<i8")
            if num * number.itemsize > len(content):
                raise damaged("a page is shorter than its values")
            return np.frombuffer(content, number, num)
        values, at = np.empty(num, object), 0
        for i in range(num):
            start = at + _LENGTH
            at = start + int.from_bytes(content[at:start], "little")
            if not start <= at <= len(content):
                raise damaged("a value is longer than its page")
            values[i] = content[start:at]
        return values

    def _hop(self, at: int, end: int, num: int) -> Numbers:
        """int64 (2, num): offset in the file and size of each of the values that lie between two places of the file."""
        window = _LENGTH if end - at > _SPARSE * num else _WINDOW
        offsets, sizes, content, begin = list[int](), list[int](), b"", at
        for _ in range(num):
            if at + _LENGTH - begin > len(content):
                content, begin = self._read(at, min(window, end - at)), at
            start = at + _LENGTH
            size = int.from_bytes(content[at - begin : start - begin], "little")
            if start > end or size > end - start:
                raise damaged("a value is longer than its page")
            offsets.append(start)
            sizes.append(size)
            at = start + size
        return np.array([offsets, sizes], np.int64).reshape(2, num)

    def _read(self, start: int, size: int) -> bytes:
        content = read_part(self.descriptor, start, size)
        if len(content) != size:
            raise damaged("it ends inside a page")
        return content


_EMPTY: NDArray[Any] = np.empty(0, np.int64)


def _page(header: Struct, start: int) -> _Page:
    try:
        kind, size, unpacked = (header.number(field, _MOST_SIZE) for field in (1, 3, 2))
        about = header.struct(_ABOUT.get(kind, 0))
        num_values, encoding = about.number(1, _MOST_SIZE), about.number(4 if kind == _DATA_2 else 2, _MOST_SIZE)
        is_dictionary, levels, is_packed = kind == _DICTIONARY, None, True
        if kind == _DATA_2:
            levels = (about.number(6, size), about.number(5, size))
            is_packed = about.get(7, True) is not False
    except ThriftError as error:
        raise damaged(f"the header of a page cannot be read ({error})") from error
    if encoding not in (_PLAIN, *_DICTIONARIES) or (kind == _DATA and about.get(3) != _RLE):
        raise ParquetError(
            f"has pages of encoding {_ENCODINGS.get(encoding, encoding)}, which are not read; write it with pyarrow or "
            "with another version of the format"
        )
    if (is_dictionary and num_values > unpacked // _LENGTH) or sum(levels or ()) > min(size, unpacked):
        raise damaged("a page is shorter than its values")
    is_plain = encoding == _PLAIN
    return _Page(num_values, is_dictionary, is_plain, start, size, unpacked, levels, is_packed)


def _looked_up(dictionary: NDArray[Any], content: bytes, num: int) -> NDArray[Any]:
    """`num` values of a dictionary: its last axis has the values. content: bits of a number, then the numbers."""
    if not num:
        return dictionary[..., :0]
    numbers = runs(content[1:], content[0] if content else 0, num)
    if numbers.max() >= dictionary.shape[-1]:
        raise damaged("a page names a value that its dictionary does not have")
    return dictionary[..., numbers]
