"""A lock file. The kernel releases the lock when the process that holds the lock ends in any way."""

import errno
import logging
from pathlib import Path
from typing import Any

from filelock import FileLock

log = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of the kernel on a file system without locks."""
_POLL_SECONDS = 0.5


def lock_file(file: Path, *, wait_seconds: float = 0.0, shared: bool = False) -> FileLock:
    """Create and lock `file`. This process holds the lock until the returned object is deleted; forked processes do not
    hold the lock. shared: users who may write the folder may lock; else only this user.

    Raises filelock.Timeout if another process holds the lock for `wait_seconds`, another OSError if the file cannot be
    written. Logs a warning on a file system without locks.
    """
    mode: dict[str, Any] = {} if shared else {"mode": 0o600}  # who can read a file can lock it
    lock = FileLock(file, thread_local=False, fallback_to_soft=False, **mode)
    try:
        lock.acquire(wait_seconds, _POLL_SECONDS, blocking=wait_seconds > 0)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.warning(f"no file locks in {file.parent} ({error.strerror}): let no other process write there")
    return lock
