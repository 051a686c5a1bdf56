"""Reads Thrift's compact protocol, in which Parquet writes its footer and the headers of its pages
(github.com/apache/thrift, doc/specs/thrift-compact-protocol.md).
"""

from typing import Any

_MOST_VALUES = 2**20
"""Most values of one structure: a footer with 10,000 row groups of three columns has fewer."""
_DEEPEST = 24
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _STRUCT = 1, 2, 3, 7, 8, 9, 12
_NUMBERS = (4, 5, 6)
_BITS = 64


class ThriftError(ValueError):
    """The bytes are no structure."""


class Struct(dict[int, Any]):
    """Number of a field -> its value."""

    def number(self, field: int, most: int, default: int | None = None) -> int:
        """A number from 0 to `most`. Raises ThriftError for another, and for a missing one without `default`."""
        value = self.get(field, default)
        if not isinstance(value, int) or not 0 <= value <= most:
            raise ThriftError(f"field {field} is not a number from 0 to {most}")
        return value

    def text(self, field: int) -> str:
        return str(self._typed(field, bytes).decode("utf-8", "replace"))

    def struct(self, field: int) -> "Struct":
        """A structure; an empty one if the field is missing."""
        return self._typed(field, Struct) if field in self else Struct()

    def structs(self, field: int) -> list["Struct"]:
        """A list of structures; empty if the field is missing."""
        found: list[Struct] = self._typed(field, list) if field in self else []
        if not all(isinstance(each, Struct) for each in found):
            raise ThriftError(f"field {field} is no list of structures")
        return found

    def _typed(self, field: int, kind: type) -> Any:
        if not isinstance(value := self.get(field), kind):
            raise ThriftError(f"field {field} is missing or has another type")
        return value


def read_struct(content: bytes) -> tuple[Struct, int]:
    """The structure at the beginning of `content`, and its number of bytes.

    Raises ThriftError; IndexError if `content` ends before the structure.
    """
    reader = _Reader(content)
    return reader.struct(0), reader.at


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = self.num_values = 0

    def struct(self, depth: int) -> Struct:
        found, field = Struct(), 0
        while header := self.byte():
            field = field + (header >> 4) if header >> 4 else self.number()
            found[field] = self.value(header & 15, depth, in_struct=True)
        return found

    def value(self, kind: int, depth: int, *, in_struct: bool = False) -> Any:
        self.num_values += 1
        if self.num_values > _MOST_VALUES or depth > _DEEPEST:
            raise ThriftError(f"a structure has more than {_MOST_VALUES} values, or is nested over {_DEEPEST} deep")
        if kind in _NUMBERS:
            return self.number()
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE if in_struct else self.byte() == _TRUE
        if kind == _BYTE:
            return self.byte()
        if kind in (_BINARY, _DOUBLE):
            return self.take(self.unsigned() if kind == _BINARY else 8)
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind != _LIST:
            raise ThriftError(f"type {kind} is in no structure of Parquet")
        header = self.byte()
        num = header >> 4 if header >> 4 < 15 else self.unsigned()
        return [self.value(header & 15, depth + 1) for _ in range(num)]

    def byte(self) -> int:
        value = self.content[self.at]
        self.at += 1
        return value

    def take(self, num: int) -> bytes:
        if num > len(self.content) - self.at:
            raise IndexError
        self.at += num
        return self.content[self.at - num : self.at]

    def unsigned(self) -> int:
        value = 0
        for shift in range(0, _BITS, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ThriftError(f"a number has more than {_BITS} bits")

    def number(self) -> int:
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)
