"""Writes a file completely or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW = ".new"
"""Suffix of the hidden file that is being written; `kill -9` leaves this file behind."""


@contextmanager
def replacing(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """A new file beside `path` that replaces `path` at the end of the block; after an error `path` is unchanged.

    sync: wait until the bytes and the new name are on the disk, so that a power cut loses neither.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}{NEW}")  # containers may have equal names and pids
    try:
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
    """Write `text` so that no reader, and no crash, finds half a file."""
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="")


def sync_to_disk(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk. Some file systems cannot do this
    for folders."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
