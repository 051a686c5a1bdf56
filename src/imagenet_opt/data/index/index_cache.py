"""data.cache_dir, and the columns of an index, which are .npy files: written by one process, completely or not at all.

A damaged or malicious file is refused before it is used: nothing is unpickled, and no number in a file can make the
process allocate more memory than the file has bytes, or read outside of the file.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
import tokenize
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from imagenet_opt.regular_file import open_regular

log = logging.getLogger(__name__)
T = TypeVar("T")

ABOUT = "about.json"
_LOCK_SECONDS = 1800.0
"""More than a listing takes; a lock that is held longer was probably left behind by a broken mount."""


def cache_folder(cache_dir: str | None) -> Path:
    """`cache_dir`, or imagenet_opt below $XDG_CACHE_HOME or ~/.cache."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "imagenet_opt"


def load_or_make(
    cache_dir: Path, identity: bytes, load: Callable[[Path], T | None], make: Callable[[Path], T]
) -> tuple[T, bool]:
    """The index that `load` finds in its folder of `cache_dir`, else the new one of `make`; and whether it is new.

    identity: of the data set. One process at a time makes the index, while others wait, unless the lock fails.
    """
    name = hashlib.sha256(identity).hexdigest()[:24]
    folder = cache_dir / "index" / name
    if (index := load(folder)) is not None:
        return index, False
    lock = FileLock(cache_dir / "locks" / f"{name}.lock")
    with suppress(OSError, NotImplementedError):
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_LOCK_SECONDS)
    try:
        index = load(folder)  # another process may have made the index meanwhile
        return (make(folder), True) if index is None else (index, False)
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


def save_columns(folder: Path, columns: Mapping[str, NDArray[Any]], about: Mapping[str, Any], place: str) -> None:
    """Write the index of `place`. A failure is only a warning, because the index is in memory."""
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


def open_column(path: Path, dtype: DTypeLike, length: int | None = None) -> NDArray[Any]:
    """Map a file of `length` numbers; None: any number. Raises ValueError with the path."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            if npy.read_magic(file) != (1, 0):
                raise ValueError("the format has another version")
            shape, _, actual = npy.read_array_header_1_0(file)
            start, size = file.tell(), os.fstat(file.fileno()).st_size
    except (OSError, ValueError, tokenize.TokenError) as error:
        raise ValueError(f"{path} cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    expected = np.dtype(dtype)
    num = (size - start) // expected.itemsize if length is None else length
    if actual != expected or shape != (num,):
        raise ValueError(f"{path} is {actual} {shape}, not {num} numbers of {expected}")
    if size != start + num * expected.itemsize:
        raise ValueError(f"{path} has {size} bytes, not {start + num * expected.itemsize} bytes for {num} numbers")
    return np.memmap(path, expected, "r", start, shape)


def check_range(path: Path, column: NDArray[Any], most: int) -> None:
    """Raises ValueError unless all numbers are from 0 to `most`."""
    if len(column) and not 0 <= column.min() <= column.max() <= most:
        raise ValueError(f"{path} is damaged: it has numbers outside of 0 to {most}")


def check_ends(path: Path, ends: NDArray[np.int64], total: int) -> None:
    """Raises ValueError unless the numbers cut 0 to `total` into pieces, in order."""
    if ends[0] != 0 or ends[-1] != total or (ends[1:] < ends[:-1]).any():
        raise ValueError(f"{path} is damaged: it does not cut {total} bytes into names")


def fingerprint_of(url: str, *columns: NDArray[Any]) -> str:
    """Name for the cache of a data set. columns: all that identifies the samples, such as names, sizes and ETags."""
    found = hashlib.sha256(url.encode())
    for column in columns:
        found.update(f"{column.dtype} {column.shape}".encode())
        found.update(np.ascontiguousarray(column).data)
    return found.hexdigest()[:24]
