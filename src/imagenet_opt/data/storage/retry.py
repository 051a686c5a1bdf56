"""Retries reads after temporary errors of the storage, and distinguishes a bad file from a storage outage."""

import errno
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import SystemRandom
from typing import TypeVar

from imagenet_opt.errors import BadSample, Name, StorageForbidden, named

log = logging.getLogger(__name__)
T = TypeVar("T")

TRANSIENT = frozenset(
    getattr(errno, name)
    for name in (
        *("EIO", "ESTALE", "EAGAIN", "ETIMEDOUT", "EREMOTEIO", "EBUSY"),
        *("ECONNRESET", "ECONNABORTED", "ECONNREFUSED", "ENOTCONN", "ENETDOWN", "ENETRESET", "ENETUNREACH"),
        *("EHOSTDOWN", "EHOSTUNREACH", "EMFILE", "ENFILE", "ENOMEM"),
    )
)
"""Errors that may pass: of a storage, or of a machine that is short of memory or of file descriptors."""
OPENING_SECONDS = 60.0
"""For which reads are repeated while a data set is opened."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_RANDOM = SystemRandom()
"""Pauses are random, so that the requests of a failed service do not come back all together. Forked processes would
draw the same pauses from a generator with a state."""
_NUM_OTHERS = 3
_QUIET_SECONDS = 1.0


def retry_transient(read: Callable[[], T], name: Name, patience: float, warn: Callable[[str], None] = log.warning) -> T:
    """Result of `read`. After a temporary OSError `read` is repeated for `patience` seconds, with random pauses that
    grow; the first error is a warning. name: for warnings. Raises the last OSError."""
    until, pause = math.inf, _FIRST_PAUSE
    while True:
        try:
            return read()
        except OSError as error:
            is_first = until == math.inf
            until = min(until, time.monotonic() + patience)
            left = until - time.monotonic()
            if error.errno not in TRANSIENT or left <= 0:
                raise
            if is_first:
                warn(f"{named(name)}: {error.strerror or error}; retrying for up to {patience:.3g} s")
        time.sleep(min(pause * _RANDOM.uniform(0.5, 1), left))
        pause = min(2 * pause, _LONGEST_PAUSE)


@contextmanager
def with_whole(folder: Path | str) -> Iterator[None]:
    """A file of a data set is read. A missing file is a temporary error if `folder`, the whole data set, is missing."""
    try:
        yield
    except FileNotFoundError as error:
        if os.path.isdir(folder):
            raise
        raise OSError(errno.ENOTCONN, f"{folder} has disappeared") from error


def is_out(failed: int, total: int, read: Callable[[int], object]) -> bool:
    """Whether three samples spread over the data set also fail with errors that may be temporary, or are forbidden.

    failed: the sample that could not be read. read: reads another sample of `total`.
    """
    for other in {(failed + i * total // (_NUM_OTHERS + 1)) % total for i in range(1, _NUM_OTHERS + 1)} - {failed}:
        try:
            read(other)
            return False
        except BadSample:
            return False
        except StorageForbidden:
            continue
        except OSError as error:
            if error.errno not in TRANSIENT:
                return False
    return True


class Events:
    """Counts events by name. Threads may share it."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def add(self, name: str, num: int = 1) -> None:
        self._names.extend([name] * num)

    def take(self) -> Counter[str]:
        """Number of each event since the last call."""
        names, self._names = self._names, []
        return Counter(names)


class SparseWarnings:
    """Logs at most one warning per second, since in an outage hundreds of requests fail together."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._quiet_until = 0.0

    def __call__(self, message: str) -> None:
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET_SECONDS
            self._log.warning(message)


@cache
def tell_once(message: str, level: int = logging.INFO) -> None:
    """Log a message once, in the first process of a machine, since a command may open a data set several times."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        log.log(level, message)
