"""Distinguishes a bad file from a storage outage, and limits repeated warnings."""

import logging
import time
from collections.abc import Callable

from imagenet_opt.data.storage.retry import TRANSIENT
from imagenet_opt.errors import BadSample

_NUM_OTHERS = 3
_QUIET_SECONDS = 1.0


def is_out(failed: int, total: int, read: Callable[[int], object]) -> bool:
    """Whether three samples spread over the data set also fail with errors that may be temporary.

    failed: the sample that could not be read. read: reads another sample of `total`.
    """
    for other in {(failed + i * total // (_NUM_OTHERS + 1)) % total for i in range(1, _NUM_OTHERS + 1)} - {failed}:
        try:
            read(other)
            return False
        except BadSample:
            return False
        except OSError as error:
            if error.errno not in TRANSIENT:
                return False
    return True


class SparseWarnings:
    """Logs at most one warning per second, since in an outage hundreds of requests fail together."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._quiet_until = 0.0

    def __call__(self, message: str) -> None:
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET_SECONDS
            self._log.warning(message)
