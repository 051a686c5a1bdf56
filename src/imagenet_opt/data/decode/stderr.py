"""What C libraries print: captured, or discarded."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from imagenet_opt.errors import printable


class CapturedStderr:
    """Captures what C libraries print to `stderr` within `with`.

    libjpeg prints its warnings there, and nvImageCodec has no option for them. Only C's variable `stderr` changes, not
    file descriptor 2, so the output of Python and of other processes goes its usual way.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("stderr")
        library = ctypes.CDLL(None)
        library.fdopen.argtypes, library.fdopen.restype = (ctypes.c_int, ctypes.c_char_p), ctypes.c_void_p
        self._captured = library.fdopen(self._file, b"w")
        library.setbuf(ctypes.c_void_p(self._captured), None)
        self._stderr = ctypes.c_void_p.in_dll(library, "stderr")
        self._usual = _usual_stderr()

    def __enter__(self) -> None:
        self._stderr.value = self._captured

    def __exit__(self, *error: object) -> None:
        self._stderr.value = self._usual

    def take(self) -> str:
        """The text since the last call, in one line."""
        if not (size := os.lseek(self._file, 0, os.SEEK_CUR)):
            return ""
        text = os.pread(self._file, size, 0).decode(errors="replace")
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        return printable("; ".join(text.splitlines()))


@cache  # as it was before the first capture: another thread may capture now
def _usual_stderr() -> int | None:
    return ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stderr").value


@contextmanager
def no_stderr() -> Iterator[None]:
    """Discard the output of C libraries to file descriptor 2."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
