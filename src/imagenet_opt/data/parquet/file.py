"""Opens Parquet files: of a folder, of a bucket, or of the Hugging Face Hub."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import BinaryIO, TypeVar

from imagenet_opt.data.storage.remote_file import hub_file, object_file
from imagenet_opt.data.storage.retry import OPENING_SECONDS, retry_transient
from imagenet_opt.errors import DataError
from imagenet_opt.object_storage import is_hub, is_url
from imagenet_opt.regular_file import check_size, open_regular

T = TypeVar("T")

_BUFFER = 2**13
"""Of files, whose block size may be 4 MiB, while the lengths of images are read."""


class ParquetError(DataError):
    """A file that cannot be read. The message has what was found and the remedy, without the name of the file."""


def damaged(what: str) -> ParquetError:
    return ParquetError(f"is damaged: {what}; download or write it again")


class ParquetFile:
    """An open file. is_remote: whether each read is a request; such a file keeps what it has read last."""

    def __init__(self, file: BinaryIO, *, is_remote: bool) -> None:
        self._file, self.is_remote, self.num_bytes = file, is_remote, file.seek(0, os.SEEK_END)

    def read(self, start: int, size: int) -> bytes:
        """`size` bytes from `start`. Raises ParquetError at the end of the file; OSError for more than MOST_BYTES."""
        check_size(size)
        self._file.seek(start)
        if len(content := self._file.read(size)) != size:
            raise damaged("it ends inside a page")
        return content


def with_file(place: str, read: Callable[[ParquetFile], T], etag: str = "") -> T:
    """The result of `read` for a Parquet file. place: its path or URL. etag: tag of an object when it was listed.
    Raises DataError that names the file."""

    def attempt() -> T:
        with open_any(place, etag) as file:
            return read(ParquetFile(file, is_remote=is_hub(place) or is_url(place)))

    try:
        return retry_transient(attempt, place, OPENING_SECONDS)
    except ParquetError as error:
        raise DataError(f"{place} {error} (data.root)") from error
    except OSError as error:
        raise DataError(f"cannot read {place} (data.root): {error.strerror or error}") from error


def open_any(place: str, etag: str = "") -> AbstractContextManager[BinaryIO]:
    """Open a file by its path or URL. Raises OSError, DataError."""
    if is_hub(place):
        return hub_file(place)
    if is_url(place):
        return object_file(place, etag, "data.root")
    return open(place, "rb", _BUFFER, opener=open_regular)
