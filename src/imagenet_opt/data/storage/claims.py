"""Lets one thread of all processes of a machine fetch a sample at a time."""

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path


class Claims:
    """Claims on samples, by number. A process that ends gives up its claims, however it ends.

    Between processes a claim is a lock on byte i of `file`; between the threads of a process it is an entry of a set.
    Such locks belong to the process, and closing any descriptor of the file gives them all up: so there is one Claims
    for each file and process (`claims_of`), which opens the file once and never closes it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor: int | None = None
        self._taken: set[int] = set()
        self._mutex = threading.Lock()

    def take(self, number: int) -> bool:
        """Whether the caller has the claim now; returns at once."""
        with self._mutex:
            if number in self._taken or not self._lock(number):
                return False
            self._taken.add(number)
            return True

    def give_back(self, number: int) -> None:
        with self._mutex, suppress(OSError):
            self._taken.discard(number)
            if self._descriptor is not None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, number)

    def _lock(self, number: int) -> bool:
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):  # another process has the lock
            return False
        except OSError:
            return True  # without locks, two processes may fetch the same sample, and write the same bytes
        return True


_OPEN: dict[tuple[int, Path], Claims] = {}


def claims_of(file: Path) -> Claims:
    """The claims of this process on `file`; a forked process has its own."""
    key = (os.getpid(), file)
    return _OPEN.get(key) or _OPEN.setdefault(key, Claims(file))
