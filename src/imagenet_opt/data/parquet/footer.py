"""Reads the footer of a Parquet file: its columns, its row groups and its metadata
(github.com/apache/parquet-format, parquet.thrift). pyarrow's reader ends the process at some damaged footers.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from imagenet_opt.data.parquet.file import ParquetError, ParquetFile, damaged
from imagenet_opt.data.parquet.thrift import Struct, ThriftError, read_struct

INT32, INT64, BYTE_ARRAY = 1, 2, 6
"""Types of columns."""
_TAIL = 2**16
"""Bytes of the first read, which most footers fit into."""
_MOST_ROWS = 2**26
_DEEPEST = 32
_REQUIRED, _REPEATED = 0, 2
_CODECS = ("", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")
_UTF8, _STRING = 0, 1
_FEATURES = b"huggingface"
"""Key of the metadata of the library datasets: JSON with the features, among them the names of classes."""


class Column(NamedTuple):
    """A leaf of the schema. max_definition: level of a value that is not null. is_repeated: several values a row."""

    path: tuple[str, ...]
    type: int
    is_text: bool
    max_definition: int
    is_repeated: bool


class Chunk(NamedTuple):
    """The pages of one column in one row group. start, end: place in the file, in bytes. codec: "" if they are not
    compressed."""

    column: Column
    start: int
    end: int
    codec: str
    num_rows: int


class Footer(NamedTuple):
    """groups: of each row group with rows, column -> its chunk. features: of the library datasets, name ->
    description."""

    columns: tuple[Column, ...]
    groups: tuple[dict[tuple[str, ...], Chunk], ...]
    num_rows: int
    features: dict[str, Any]


def read_footer(file: ParquetFile) -> Footer:
    """Raises ParquetError, OSError."""
    tail = file.read(max(0, file.num_bytes - _TAIL), min(file.num_bytes, _TAIL))
    if tail[-4:] != b"PAR1":
        raise ParquetError(
            f"has {file.num_bytes} bytes and no footer that can be read: it is still being written, was copied in "
            "part, or is encrypted; wait, or copy it again"
        )
    size, end = int.from_bytes(tail[-8:-4], "little"), file.num_bytes - 8
    if size > end:
        raise damaged(f"its footer claims {size} of {end} bytes")
    content = tail[-8 - size : -8] if size + 8 <= len(tail) else file.read(end - size, size)
    try:
        return _footer(read_struct(content)[0], end - size)
    except (ThriftError, IndexError) as error:
        raise damaged(f"its footer cannot be read ({error})") from error


def _footer(about: Struct, data_end: int) -> Footer:
    num_rows = about.number(3, _MOST_ROWS)
    columns = tuple(_columns(about.structs(2)))
    groups = tuple(_chunks(group, columns, data_end) for group in about.structs(4) if group.number(3, num_rows))
    total = sum(next(iter(group.values())).num_rows for group in groups)
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
    chunks, num_rows = group.structs(1), group.number(3, _MOST_ROWS)
    if len(chunks) != len(columns) or not chunks:
        raise ThriftError(f"a row group has {len(chunks)} of {len(columns)} columns")
    found = {}
    for column, chunk in zip(columns, chunks, strict=True):
        if chunk.get(1):
            raise ThriftError("a column lies in another file")
        about = chunk.struct(3)
        start, dictionary = about.number(9, data_end), about.number(11, data_end, 0)
        start = min(start, dictionary) if dictionary else start
        end = start + about.number(7, data_end - start)
        found[column.path] = Chunk(column, start, end, _CODECS[about.number(4, len(_CODECS) - 1)], num_rows)
    return found


def _features(metadata: list[Struct]) -> dict[str, Any]:
    text = next((pair[2] for pair in metadata if pair.get(1) == _FEATURES and isinstance(pair.get(2), bytes)), b"{}")
    try:
        features = json.loads(text)["info"]["features"]
        return {str(name): about for name, about in features.items() if isinstance(about, dict)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
