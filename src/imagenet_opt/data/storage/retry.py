"""Retries reads after temporary errors of the storage."""

import errno
import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

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
"""What storage, or a machine short of something, says of any file for a while."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


def retry_transient(read: Callable[[], T], name: str, patience: float, warn: Callable[[str], None] = log.warning) -> T:
    """Result of `read`. After a temporary OSError it is repeated, with growing pauses, for `patience` seconds. name:
    for warnings. Raises the last OSError."""
    until, pause = math.inf, _FIRST_PAUSE
    while True:
        try:
            return read()
        except OSError as error:
            until = min(until, time.monotonic() + patience)
            left = until - time.monotonic()
            if error.errno not in TRANSIENT or left <= 0:
                raise
            warn(f"{name}: {error.strerror or error}; retrying for up to {left:.3g} s")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
