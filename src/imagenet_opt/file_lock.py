"""A file that one process at a time holds locked, by the kernel, which frees it however that process ends."""

import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


def claim(file: Path) -> int:
    """Make and lock `file`; the descriptor, which holds the lock until it and its copies in forks are closed.

    Raises BlockingIOError where it is held already, OSError where it cannot be written. On a file system without
    locks: a warning.
    """
    held = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)  # to write, without which NFS gives no lock
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise
    except OSError as error:
        log.warning(f"{file.parent} knows no locks ({error.strerror}): see that no other process writes there")
    return held
