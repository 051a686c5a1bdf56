"""data.cache_dir, and its folders that hold an index: written by one process, completely or not at all."""

import errno
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

log = logging.getLogger(__name__)

ABOUT = "about.json"
_LOCK_SECONDS = 1800.0
"""More than a listing takes; a lock that is held longer was probably left behind by a broken mount."""


def cache_folder(cache_dir: str | None) -> Path:
    """`cache_dir`, or imagenet_opt below $XDG_CACHE_HOME or ~/.cache."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "imagenet_opt"


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Let one process at a time list a data set, or all processes if `file` cannot be locked or stays locked."""
    lock = FileLock(file)
    with suppress(OSError, NotImplementedError):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_LOCK_SECONDS)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """An empty folder that replaces `folder` at the end of the block. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="new_") as scratch:
        fresh = Path(scratch, "index")
        fresh.mkdir()
        yield fresh
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.replace(fresh, folder)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:  # another process of this run was faster
                raise


def save_columns(folder: Path, columns: Mapping[str, NDArray[Any]], about: Mapping[str, Any], place: str) -> bool:
    """Write the index of `place`. A failure is only a warning and the result False, because the index is in memory."""
    try:
        with new_folder(folder) as fresh:
            for name, column in columns.items():
                np.save(fresh / f"{name}.npy", column)
            (fresh / ABOUT).write_text(json.dumps(about))
    except OSError as error:
        log.warning(
            f"the index of {place} was not cached: {error}; set data.cache_dir to a folder on a local disk that can be "
            "written"
        )
        return False
    return True
