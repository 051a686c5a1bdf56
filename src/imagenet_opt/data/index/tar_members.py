"""The members of a tar file, from its headers alone: ustar, GNU and PAX formats.

The formats are those of POSIX.1-2001 (pax, "ustar Interchange Format" and "pax Interchange Format") and of the manual
of GNU tar ("Basic Tar Format"). Python's `tarfile` makes an object of each header, which takes eight times as long.
"""

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from zlib import adler32

from imagenet_opt.regular_file import read_part

Read = Callable[[int, int], bytes]
"""(start, size) -> that part of a tar file, or fewer bytes at its end. No call begins before an earlier one."""
Member = tuple[bytes, int, int, bool]
"""Name, start and size of the content in bytes, and whether it is a file: no link, device or sparse file."""

_BLOCK = 512
_END = bytes(_BLOCK)
_WINDOW = 2**13
"""Bytes that are read at least: those of the headers and labels between two images."""
_PADDING = 2**15
"""Bytes behind the end mark that are compared with zeros; tars are padded to 10 KiB."""
_MOST_HEADER, _MOST_IN_A_ROW = 2**16, 8
"""Most bytes of an extended header, which has a path, and most extended headers of a member."""
_FILES, _FOLDER, _SPARSE, _WITHOUT_CONTENT = frozenset(b"0\x007"), ord("5"), ord("S"), frozenset(b"123456")
_SHARED, _LONG_NAME, _LONG_LINK = ord("g"), ord("L"), ord("K")
_EXTENDED = frozenset(b"xXgLK")
_COMPRESSED = {b"\x1f\x8b": "gzip -d", b"BZh": "bzip2 -d", b"\xfd7z": "xz -d", b"(\xb5/\xfd": "zstd -d"}


class TarError(ValueError):
    """A tar that cannot be used. The message follows the name of the file: "ends at byte ...", with the remedy."""


class FileBytes:
    """Parts of an open file, of which 8 KiB are read at a time. num_bytes: its size."""

    def __init__(self, descriptor: int) -> None:
        self.num_bytes = os.fstat(descriptor).st_size
        self._descriptor, self._start, self._held = descriptor, 0, b""

    def read(self, start: int, size: int) -> bytes:
        """See Read."""
        first = start - self._start
        if first < 0 or first + size > len(self._held):
            self._held = read_part(self._descriptor, start, max(size, _WINDOW))
            self._start, first = start, 0
        return self._held[first : first + size]


class StreamBytes:
    """Parts of a stream that is read once, such as an object. chunks: of the stream, in order. Raises ValueError for a
    part that has passed."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._start, self._held = chunks, 0, b""

    def read(self, start: int, size: int) -> bytes:
        """See Read."""
        if start < self._start:
            raise ValueError(f"byte {start} of the stream has passed")
        while self._start + len(self._held) < start + size and (chunk := next(self._chunks, b"")):
            kept = self._held[start - self._start :]
            self._start += len(self._held) - len(kept)
            self._held = kept + bytes(chunk)
        first = start - self._start
        return self._held[first : first + size]


def members(read: Read, num_bytes: int) -> Iterator[Member]:
    """The members but folders, in the order of the file; `read` may read the content of a member before the next one
    is asked for. num_bytes: size of the file. A file may lack its end mark, see `has_end_mark`.

    Raises TarError for what is no tar, is damaged, ends too early, or has members outside of its folder.
    """
    at, in_a_row, shared, own = 0, 0, dict[bytes, bytes](), dict[bytes, bytes]()
    window, base = b"", 0
    while at < num_bytes:
        if not 0 <= (first := at - base) <= len(window) - _BLOCK:
            window, base, first = read(at, _WINDOW), at, 0
        header = window[first : first + _BLOCK]
        if header == _END:
            break
        if ((adler32(header) & 0xFFFF) - _summed(header[148:156])) % 65521:
            raise _no_header(header, at)
        kind, start = header[156], at + _BLOCK
        try:
            size = int(header[124:135], 8)
        except ValueError:
            size = _number(header[124:136])
        if kind in _EXTENDED:
            if (in_a_row := in_a_row + 1) > _MOST_IN_A_ROW:
                raise _damaged(f"more than {_MOST_IN_A_ROW} extended headers in a row, at byte {at}")
            if not 0 <= size <= _MOST_HEADER:
                raise _damaged(f"a header claims {size} bytes")
            if start + size > num_bytes:
                raise _cut_off(num_bytes, "in an extended header")
            _extend(shared if kind == _SHARED else own, kind, read(start, size))
        else:
            records = {**shared, **own} if shared else own
            name, is_file = _name(header), kind in _FILES
            if records:
                name, size = records.get(b"path", name), _size(records.get(b"size", size))
                is_file = is_file and b"GNU.sparse" not in records
            if kind in _WITHOUT_CONTENT:
                size = 0
            elif not 0 <= size <= num_bytes - start or kind == _SPARSE:
                raise _impossible(name, kind, size, num_bytes)
            if kind != _FOLDER and name[-1:] != b"/":
                if b"./" in name or b"//" in name or name[:1] == b"/":
                    name = _inside(name)
                yield name, start, size, is_file
            in_a_row, own = 0, own and {}
        at = start + (size + _BLOCK - 1) // _BLOCK * _BLOCK
    if in_a_row:
        raise _cut_off(min(at, num_bytes), "after an extended header")
    if at < num_bytes and read(at, _PADDING).strip(b"\0"):
        raise TarError(
            f"goes on behind its end mark at byte {at}, where readers of tars stop; write joined tars into "
            "one, or keep them apart"
        )


def has_end_mark(read: Read, num_bytes: int) -> bool:
    """Whether the file ends in zeros, as a tar that was closed; call it after `members` came to its end."""
    return read(max(0, num_bytes - _BLOCK), _BLOCK) == _END


@lru_cache(2**14)
def _summed(checksum: bytes) -> int:
    """The lower half of Adler-32 of a header with this checksum, modulo 65521: 1 + the sum of its bytes. A checksum is
    the sum with its own bytes as spaces."""
    try:
        return 1 + int(checksum.strip(b"\0 "), 8) - 8 * ord(" ") + sum(checksum)
    except ValueError:
        return -1


def _no_header(header: bytes, at: int) -> TarError:
    if at:
        return (
            _damaged(f"no header at byte {at}") if len(header) == _BLOCK else _cut_off(at + len(header), "in a header")
        )
    if unpack := next((command for magic, command in _COMPRESSED.items() if header.startswith(magic)), ""):
        return TarError(f"is compressed, so no image of it can be read alone; unpack it with {unpack}")
    return TarError("is not a tar file; copy it again, or remove it")


def _number(field: bytes) -> int:
    """An octal number or, if the first bit is set, a signed binary one; -1 for neither."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big", signed=True)
    try:
        return int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _size(size: bytes | int) -> int:
    if isinstance(size, int):
        return size
    if size.isdigit() and len(size) < 20:
        return int(size)
    raise _damaged(f"a header has the size {size[:20]!r}")


def _extend(records: dict[bytes, bytes], kind: int, text: bytes) -> None:
    """Add path, size and GNU.sparse of a PAX header, or the path of a long name of GNU tar."""
    if kind == _LONG_NAME:
        records.setdefault(b"path", text.partition(b"\0")[0])
    elif kind != _LONG_LINK and (b" path=" in text or b" size=" in text or b" GNU.sparse" in text):
        records.update(_records(text))


def _records(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Those records among lines of "LENGTH KEY=VALUE"; the length counts the whole line, and a value may have any
    bytes."""
    at = 0
    while at < len(text) and text[at]:
        length, _, _ = text[at : at + 8].partition(b" ")
        end = at + int(length) if length.isdigit() else 0
        key, is_record, value = text[at + len(length) + 1 : end - 1].partition(b"=")
        if not is_record or text[end - 1 : end] != b"\n":
            raise _damaged("an extended header has records that are cut")
        if key in (b"path", b"size"):
            yield key, value
        elif key.startswith(b"GNU.sparse"):
            yield b"GNU.sparse", value
        at = end


def _name(header: bytes) -> bytes:
    name = header[: header.find(b"\0", 0, 100)] if header[99] == 0 else header[:100].partition(b"\0")[0]
    if header[345] and header[257:263] == b"ustar\0":  # GNU tar has other fields there
        return header[345:500].partition(b"\0")[0] + b"/" + name
    return name


def _inside(name: bytes) -> bytes:
    """The name without "./" and "//". Raises TarError for a path that leads out of the folder of the tar."""
    short = os.path.normpath(name)
    if short[:1] == b"/" or short[:3] == b"../":
        raise TarError(f"has the member {os.fsdecode(name)!r}, which lies outside of the archive; write it without")
    return short


def _impossible(name: bytes, kind: int, size: int, num_bytes: int) -> TarError:
    if kind == _SPARSE:
        return TarError(f"has the sparse file {os.fsdecode(name)!r}; write it without tar's --sparse")
    what = f"{os.fsdecode(name)!r}, which claims {size} bytes"
    return _cut_off(num_bytes, f"in {what}") if size >= 0 else _damaged(what)


def _cut_off(num_bytes: int, where: str) -> TarError:
    return TarError(
        f"ends at byte {num_bytes}, {where}: it was cut off, or is still being written; copy it again, or wait for it"
    )


def _damaged(what: str) -> TarError:
    return TarError(f"is damaged: {what}; copy it again")
