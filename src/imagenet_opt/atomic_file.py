"""Files that are whole or not there."""

import errno
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW = ".new"
"""How the names of files end that are being written; after `kill -9` they stay behind, hidden."""


@contextmanager
def replacing(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """A new file beside `path` that takes its name at the end of the block; after an error `path` is as before.

    sync: the bytes and the new name are on the disk before the block ends, so that a power cut loses neither.
    """
    fresh = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}{NEW}")
    try:
        fresh.unlink(missing_ok=True)
        yield fresh
        if sync:
            sync_to_disk(fresh)
        os.replace(fresh, path)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    if sync:
        sync_to_disk(path.parent)


def write_atomically(path: Path, text: str) -> None:
    """Write so that a reader, or a crash, never meets half a file."""
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="")


def sync_to_disk(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk; some file systems cannot do that for folders."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
