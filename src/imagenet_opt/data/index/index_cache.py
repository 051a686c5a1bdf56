"""data.cache_dir, and the columns of a split in it, which are .npy files: written by one process, completely or not at
all.

A damaged or malicious file is refused before it is used: nothing is unpickled, and no number in a file can make the
process allocate more memory than the file has bytes, or read outside of the file.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
import tokenize
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from imagenet_opt.data.index.split import Origin, Split, numbers
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.display.progress import Show, progress
from imagenet_opt.errors import DataError
from imagenet_opt.regular_file import open_regular, read_file

log = logging.getLogger(__name__)
T = TypeVar("T")

ABOUT = "about.json"
_FORMAT = 6
Mark = tuple[int, int, int, int]
"""Size of a file, modification time, change time and inode. Unpacking may set the first time back, and no program the
second."""
Marks = Mapping[str, Mark]
"""Full path of a file or folder -> its mark."""
_MARK_THREADS = 32
_SLOW = 2.0
"""Seconds after which a scan shows its progress."""
_CLOCK_STEP_NS = 2 * 10**9
"""Coarsest step of a file system's times (FAT: 2 s; Lustre: 1 s)."""
_DTYPES: dict[str, DTypeLike] = {
    "labels": np.int32,
    "names": np.uint8,
    "name_offsets": np.int64,
    "sizes": np.int64,
    "container_ids": np.int32,
    "offsets": np.int64,
    "checksums": np.uint32,
    "etags": np.bytes_,
}
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


def open_kept(
    cache_dir: Path,
    place: str,
    scan: Callable[[], tuple[Split, Marks]],
    *,
    files: Sequence[str] = (),
    checksum: int = 0,
) -> Split:
    """The split that `scan` finds, or the one that it found before, while all files and folders have the marks that
    they had before they were read.

    place: what is scanned. files: all names, if new files change no mark. checksum: of what else must be the same. The
    split is not kept if something changed less than two seconds before the scan: a later
    change could leave the same time, because some file systems keep whole seconds. If several processes have one cache
    folder, one process scans and the others wait.
    """

    facts = {"files": list(files), "checksum": checksum}

    def make(cached: Path) -> Split:
        started_ns = time.time_ns()
        split, marks = scan()
        latest = max((max(changes) for _, *changes, _ in marks.values()), default=0)
        if latest < started_ns - _CLOCK_STEP_NS:
            split = save(cached, split, marked=list(marks), marks=list(marks.values()), **facts)
        tell_listed(split)
        return split

    def is_current(about: Mapping[str, Any]) -> bool:
        if any(about[name] != fact for name, fact in facts.items()):
            return False
        return bool(about["marks"] == [[*found] for found in marks_of(about["marked"]).values()])

    def of_cache(cached: Path) -> Split | None:
        if (found := load(cached, is_current)) is not None:
            tell_listed(found, cached)
        return found

    return load_or_make(cache_dir, os.fsencode(place), of_cache, make)[0]


def scan_each(what: str, names: Sequence[str], scan: Callable[[str], T], *, num_threads: int) -> list[T]:
    """What `scan` finds in each file or folder, in order. what: their kind, for the progress, which is shown after two
    seconds. Raises the errors of `scan`."""
    threads, began, found = ThreadPoolExecutor(num_threads), time.perf_counter(), list[T]()
    show: Show | None = None
    with ExitStack() as stack:
        stack.callback(threads.shutdown, cancel_futures=True)
        for each in threads.map(scan, names):
            found.append(each)
            if time.perf_counter() - began > _SLOW:
                show = show or stack.enter_context(progress(f"reading {what}", what.rpartition(" ")[2], began=began))
                show(len(found), len(names))
    return found


def marks_of(paths: Sequence[str]) -> dict[str, Mark]:
    """The mark of each file or folder, to take before they are read. Raises OSError."""
    with ThreadPoolExecutor(_MARK_THREADS) as threads:
        return dict(zip(paths, threads.map(mark, paths), strict=True))


def mark(path: str | Path) -> Mark:
    """See Mark. Raises OSError."""
    status = os.stat(path)
    size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def save(cached: Path, split: Split, **about: Any) -> Split:
    """The split, with its columns mapped from files in `cached`. about: further facts for `load`. A failure is only a
    warning, because the columns are in memory."""
    columns = {name: column for name in _DTYPES if len(column := getattr(split, name))}
    kept = {name: getattr(split, name) for name in ("place", "classes", "containers", "others", "open_ends", "codec")}
    etag_bytes = split.etags.itemsize if len(split.etags) else 0
    kept |= {"listed": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f UTC}", "etag_bytes": etag_bytes}
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent, prefix="new_") as scratch:
            fresh = Path(scratch, "index")
            fresh.mkdir()
            for name, column in columns.items():
                np.save(fresh / f"{name}.npy", column)
            checksums = {name: crc32_of(fresh / f"{name}.npy") for name in columns}
            facts = {"format": _FORMAT, **kept, "columns": checksums, **about}
            (fresh / ABOUT).write_text(json.dumps(facts | {"crc32": zlib.crc32(json.dumps(facts).encode())}))
            shutil.rmtree(cached, ignore_errors=True)
            try:
                os.replace(fresh, cached)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:  # another process of this run was faster
                    raise
    except OSError as error:
        log.warning(
            f"the index of {split.place} was not cached: {error}; set data.cache_dir to a folder on a local disk that "
            "can be written"
        )
        return split
    return load(cached) or split


def load(cached: Path, is_valid: Callable[[Mapping[str, Any]], bool] = lambda about: True) -> Split | None:
    """The split that `save` kept; None unless its files are whole, and valid by what `save` was told about them."""
    try:
        content = read_file(cached / ABOUT)
        about = json.loads(content)
        whole = about.pop("crc32") == zlib.crc32(json.dumps(about).encode())
        if not whole or about["format"] != _FORMAT or not is_valid(about):
            return None
        if any(crc32_of(cached / f"{name}.npy") != checksum for name, checksum in about["columns"].items()):
            return None  # a damaged label would train unnoticed
        return _opened(cached, about, Origin(cached / ABOUT, zlib.crc32(content), partial(_load_again, cached)))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _load_again(cached: Path) -> Split:
    if (split := load(cached)) is None:
        raise DataError(f"the index in {cached} is damaged; remove this folder, and run the same command again")
    return split


def _opened(cached: Path, about: Mapping[str, Any], origin: Origin) -> Split:
    """The split of checked columns. Raises ValueError, LookupError, TypeError for damaged files."""
    classes, containers = tuple(map(str, about["classes"])), tuple(map(str, about["containers"]))
    num = len(open_column(cached / "labels.npy", np.int32))
    lengths = {"names": None, "name_offsets": num + 1, "etags": len(containers) or num}
    dtypes = _DTYPES | {"etags": f"S{int(about['etag_bytes'])}"}
    columns: dict[str, Any] = {}
    for name in map(str, about["columns"]):
        # an array is faster than a memmap, item by item
        columns[name] = np.asarray(open_column(cached / f"{name}.npy", dtypes[name], lengths.get(name, num)))
    check_range(cached / "labels.npy", columns["labels"], len(classes) - 1)
    check_ends(cached / "name_offsets.npy", columns["name_offsets"], len(columns["names"]))
    if containers:
        check_range(cached / "container_ids.npy", columns["container_ids"], len(containers) - 1)
        check_range(cached / "offsets.npy", columns["offsets"], 2**62)
        check_range(cached / "sizes.npy", columns["sizes"], 2**62)
    others = {str(name): int(num) for name, num in dict(about["others"]).items()}
    return Split(
        place=str(about["place"]),
        codec=str(about.get("codec", "")),
        classes=classes,
        containers=containers,
        others=others,
        open_ends=tuple(i for i in about.get("open_ends", ()) if 0 <= i < len(containers)),
        origin=origin,
        **columns,
    )


def tell_listed(split: Split, cached: Path | None = None) -> None:
    """Say once how many images a data set has: when they were listed, if the list is the one in `cached`; how many
    other files were left out."""
    parts = []
    if cached is not None:
        listed = json.loads(read_file(cached / ABOUT))["listed"]
        parts.append(f"as listed on {listed[:16]} UTC; to list them again, remove {cached}")
    if split.others:
        parts.append(f"left out are other files: {numbers(split.others)}")
    if parts:
        tell_once(f"{len(split)} images below {split.place}, {'; '.join(parts)}")
    if split.open_ends:
        tell_once(split.doubt, logging.WARNING)


def crc32_of(path: Path) -> int:
    """zlib.crc32 of a file. Raises OSError."""
    checksum = 0
    with open(path, "rb", opener=open_regular) as file:
        while piece := file.read(2**20):
            checksum = zlib.crc32(piece, checksum)
    return checksum


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
