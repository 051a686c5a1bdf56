"""Opens and reads the files of a data set. Their names may lead to pipes, devices, or sparse files of any size."""

import errno
import os
import stat
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

MOST_BYTES = 2**29
"""Most bytes of a sample or an index.json: an uncompressed image of 100 million pixels has less."""
reserve: ContextVar[Callable[[int], None] | None] = ContextVar("reserve", default=None)
"""Called with the size of what is read next in this thread, before memory is taken for it; raises OSError to refuse."""


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Descriptor of a regular file; also an `opener` of `open`. Raises OSError, without waiting, for anything else."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # else a pipe waits for its writer
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.ENXIO, "not a regular file, but a pipe or a device")
        os.set_blocking(descriptor, True)  # a file that is still on slower storage has to be waited for
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: str | Path) -> bytes:
    """Content of a regular file. Raises OSError, for more than MOST_BYTES too."""
    descriptor = open_regular(path)
    try:
        return read_part(descriptor)
    finally:
        os.close(descriptor)


def read_part(descriptor: int, start: int = 0, size: int | None = None) -> bytes:
    """`size` bytes from `start`, or fewer at the end of the file; None: to its end. Raises OSError as read_file."""
    size = os.fstat(descriptor).st_size - start if size is None else size
    check_size(size)
    content = os.pread(descriptor, size, start)
    while 0 < len(content) < size and (more := os.pread(descriptor, size - len(content), start + len(content))):
        content += more  # some network file systems answer in pieces
    return content


def check_size(size: int) -> None:
    """Raise OSError for a sample of more than MOST_BYTES, or that `reserve` refuses, before memory is taken for it."""
    if size > MOST_BYTES:
        raise OSError(errno.EFBIG, f"{size} bytes are more than the {MOST_BYTES} that an image may have")
    if ask := reserve.get():
        ask(size)
