"""A file that one process at a time holds locked, by the kernel, which frees it however that process ends."""

import errno
import logging
from pathlib import Path

from filelock import FileLock

log = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""What the kernel answers on a file system without locks."""


def lock_file(file: Path) -> FileLock:
    """Make and lock `file`; the lock is held as long as the answer is kept, and by no forked process.

    Raises filelock.Timeout where another process holds the lock, another OSError where the file cannot be written. On a
    file system without locks: a warning.
    """
    lock = FileLock(file, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.warning(f"no file locks in {file.parent} ({error.strerror}): let no other process write there")
    return lock
