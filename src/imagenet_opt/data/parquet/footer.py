"""Reads the footer of a Parquet file: its columns, its row groups and its metadata
(github.com/apache/parquet-format, parquet.thrift).
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from imagenet_opt.data.parquet.thrift import Struct, ThriftError, read_struct
from imagenet_opt.regular_file import read_part

INT32, INT64, BYTE_ARRAY = 1, 2, 6
"""Types of columns."""
_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_MOST_FOOTER = 2**26
_MOST_ROWS = 2**26
_DEEPEST = 32
_REQUIRED, _REPEATED = 0, 2
_CODECS = ("uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")
_UTF8, _STRING = 0, 1
_FEATURES = b"huggingface"
"""Key of the metadata of the library datasets: JSON with the features, among them the names of classes."""


class ParquetError(ValueError):
    """A file that cannot be read. The message has what was found and the remedy, without the name of the file."""


@dataclass(frozen=True)
class Column:
    """A leaf of the schema. max_definition: level of a value that is not null. is_repeated: several values a row."""

    path: tuple[str, ...]
    type: int
    is_text: bool
    max_definition: int
    is_repeated: bool


@dataclass(frozen=True)
class Chunk:
    """The pages of one column in one row group. start, end: place in the file, in bytes."""

    column: Column
    start: int
    end: int
    codec: str
    num_rows: int


@dataclass(frozen=True)
class Footer:
    """groups: of each row group, column -> its chunk. features: of the library datasets, name -> description."""

    columns: tuple[Column, ...]
    groups: tuple[dict[tuple[str, ...], Chunk], ...]
    num_rows: int
    features: dict[str, Any]


def read_footer(descriptor: int) -> Footer:
    """Raises ParquetError, OSError."""
    size = os.fstat(descriptor).st_size
    end = read_part(descriptor, max(0, size - 8), min(size, 8))
    if end[4:] == _ENCRYPTED:
        raise ParquetError("is encrypted; write it without encryption")
    if end[4:] != _MAGIC or read_part(descriptor, 0, 4) != _MAGIC:
        raise ParquetError(
            f"has {size} bytes and no footer: it is still being written, or was copied in part; wait, or copy it again"
        )
    length = int.from_bytes(end[:4], "little")
    if length > min(size - 12, _MOST_FOOTER):
        raise damaged(f"its footer claims {length} of {size} bytes")
    try:
        return _footer(read_struct(read_part(descriptor, size - 8 - length, length))[0], size - 8 - length)
    except (ThriftError, IndexError) as error:
        raise damaged(f"its footer cannot be read ({error})") from error


def damaged(what: str) -> ParquetError:
    return ParquetError(f"is damaged: {what}; download or write it again")


def _footer(about: Struct, data_end: int) -> Footer:
    num_rows = about.number(3, _MOST_ROWS)
    columns = tuple(_columns(about.structs(2)))
    groups = tuple(_chunks(group, columns, data_end) for group in about.structs(4) if group.number(3, num_rows))
    total = sum(next(iter(group.values())).num_rows for group in groups if group)
    if total != num_rows:
        raise damaged(f"its row groups have {total} rows, its footer says {num_rows}")
    return Footer(columns, groups, num_rows, _features(about.structs(5)))


def _columns(schema: list[Struct]) -> Iterator[Column]:
    """The leaves of the schema, which lists the nodes of a tree in depth-first order."""
    nodes = iter(schema)

    def below(path: tuple[str, ...], level: int, is_repeated: bool) -> Iterator[Column]:
        node = next(nodes, None)
        if node is None or len(path) > _DEEPEST:
            raise ThriftError("the schema is incomplete, or too deep")
        repetition = node.number(3, _REPEATED, _REQUIRED)
        level, is_repeated = level + (repetition != _REQUIRED), is_repeated or repetition == _REPEATED
        path = (*path, node.text(4))
        for _ in range(node.number(5, len(schema), 0)):
            yield from below(path, level, is_repeated)
        if not node.get(5):
            is_text = node.get(6) == _UTF8 or _STRING in node.struct(10)
            yield Column(path, node.number(1, 7), is_text, level, is_repeated)

    root = next(nodes, None) or Struct()
    for _ in range(root.number(5, len(schema), 0)):
        yield from below((), 0, False)


def _chunks(group: Struct, columns: tuple[Column, ...], data_end: int) -> dict[tuple[str, ...], Chunk]:
    chunks = group.structs(1)
    if len(chunks) != len(columns) or not chunks:
        raise ThriftError(f"a row group has {len(chunks)} of {len(columns)} columns")
    return {
        column.path: _chunk(chunk, column, group.number(3, _MOST_ROWS), data_end)
        for chunk, column in zip(chunks, columns, strict=True)
    }


def _chunk(chunk: Struct, column: Column, num_rows: int, data_end: int) -> Chunk:
    if chunk.get(1):
        raise ThriftError("a column lies in another file")
    about = chunk.struct(3)
    start = about.number(9, data_end)
    dictionary = about.number(11, data_end, 0)
    start = min(start, dictionary) if dictionary else start
    codec = about.number(4, len(_CODECS) - 1)
    return Chunk(column, start, start + about.number(7, data_end - start), _CODECS[codec], num_rows)


def _features(metadata: list[Struct]) -> dict[str, Any]:
    text = next((pair[2] for pair in metadata if pair.get(1) == _FEATURES and isinstance(pair.get(2), bytes)), b"{}")
    try:
        features = json.loads(text)["info"]["features"]
        return {str(name): about for name, about in features.items() if isinstance(about, dict)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
