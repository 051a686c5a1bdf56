"""Reads that outlast what storage gets over by itself."""

import errno
import logging
import time
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_TRANSIENT = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ECONNRESET, errno.EBUSY}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
"""Seconds."""


def retried(read: Callable[[], _T], name: str, patience: float) -> _T:
    """What `read` gives; after a transient OSError it is asked again, for up to `patience` seconds.

    Raises the last OSError.
    """
    end, pause = time.monotonic() + patience, _FIRST_PAUSE
    while True:
        try:
            return read()
        except OSError as error:
            left = end - time.monotonic()
            if error.errno not in _TRANSIENT or left <= 0:
                raise
            if pause == _FIRST_PAUSE:
                log.warning(f"{name}: {error.strerror}; trying again for up to {patience:g} s")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
