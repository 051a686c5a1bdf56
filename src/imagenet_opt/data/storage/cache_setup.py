"""Makes and opens the folder of a cache, and tells which older caches take room."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.atomic_file import replacing, write_atomically
from imagenet_opt.data.storage.cache_folder import COLUMNS, LOCKS, SEGMENTS, CacheFolder, free_bytes
from imagenet_opt.display.progress import size
from imagenet_opt.errors import printable
from imagenet_opt.file_lock import lock_file
from imagenet_opt.regular_file import read_file

log = logging.getLogger(__name__)

_FORMAT = 1
_ABOUT = "about.json"
_LOCK_SECONDS = 60.0


class About(NamedTuple):
    """Content of about.json. bytes: of all samples."""

    format: int
    url: str
    samples: int
    bytes: int


def open_cache(
    path: Path, url: str, sizes: NDArray[np.int64], *, most_bytes: float, drop_pages: bool = False
) -> CacheFolder | None:
    """The cache of the data set at `url`, made if it does not exist yet; None, with a warning, if that is impossible.

    path: changes with the content of the data set. sizes: bytes of each sample. most_bytes: limit of the samples that
    are kept. Fewer are kept if less than 5 % of the disk would stay free.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    about = About(_FORMAT, url, len(sizes), int(starts[-1]))
    try:
        _make_sure(path, about, starts)
        room = _bytes_on_disk(path) + free_bytes(path)
        is_writable = all(os.access(path / name, os.W_OK) for name in ("state", "checksums", LOCKS, SEGMENTS))
        num_kept = max(0, int(np.searchsorted(starts, min(most_bytes, room), "right")) - 1)
        cache = CacheFolder(path, num_kept, stopped="" if is_writable else "it is read-only", drop_pages=drop_pages)
    except OSError as error:
        log.warning(
            f"{path} (data.cache_dir) cannot be a cache: {error.strerror or error}; each epoch reads all samples from "
            f"{printable(url)}. Set data.cache_dir to a folder on a local disk"
        )
        return None
    _tell(cache, about, by_disk=room < most_bytes)
    return cache


def _make_sure(path: Path, about: About, starts: NDArray[np.int64]) -> None:
    """Make an empty cache, unless there is a whole one."""
    if _is_whole(path, about, starts):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = lock_file(path.parent / f"{path.name}.lock", wait_seconds=_LOCK_SECONDS, shared=True)
    if not _is_whole(path, about, starts):  # another process may have made the cache meanwhile
        _make(path, about, starts)
    del lock


def _make(path: Path, about: About, starts: NDArray[np.int64]) -> None:
    """The columns have their full size at once, because a process that wrote to a mapped file on a full disk would be
    killed."""
    (path / SEGMENTS).mkdir(parents=True, exist_ok=True)
    (path / LOCKS).touch()
    columns = {name: np.zeros(about.samples, dtype) for name, dtype in COLUMNS.items()} | {"starts": starts}
    for name, column in columns.items():
        with replacing(path / name) as fresh:
            column.tofile(fresh)
    write_atomically(path / _ABOUT, json.dumps(about._asdict()))  # last, because a cache is whole with this file


def _is_whole(path: Path, about: About, starts: NDArray[np.int64]) -> bool:
    try:
        if _read_about(path) != about:
            return False
        for name, dtype in COLUMNS.items():
            num = len(starts) if name == "starts" else about.samples
            if (path / name).stat().st_size != num * np.dtype(dtype).itemsize:
                return False
        return np.array_equal(np.fromfile(path / "starts", np.int64), starts)
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _read_about(path: Path) -> About:
    """Raises OSError, ValueError, TypeError or RecursionError for a folder that is no cache."""
    return About(**json.loads(read_file(path / _ABOUT)))


def _tell(cache: CacheFolder, about: About, *, by_disk: bool) -> None:
    """Log what limits the cache, and which other caches take room; one process of the machine does so, once."""
    if not cache.claims.take(about.samples + 1):  # never given back
        return
    url = printable(about.url)
    if cache.stopped:
        log.warning(
            f"{cache.path} (data.cache_dir) cannot be written: {cache.stopped}; samples that are not in it are read "
            f"from {url} in each epoch. Make it writable, or set data.cache_dir to another folder"
        )
    elif (served := cache.served_bytes()) < about.bytes:
        limit = "the disk, of which 5 % stay free" if by_disk else "data.cache_gb"
        log.info(
            f"{cache.path} (data.cache_dir) keeps {size(served)} of the {size(about.bytes)} of {url}, and "
            f"each epoch reads the rest from there; the limit is {limit}"
        )
    for path, other in _others(cache.path):
        if other.url == about.url:
            log.info(
                f"{path} (data.cache_dir) is a cache of {url} as it was before, and takes "
                f"{size(_bytes_on_disk(path))}; no run with the present data uses it, so you may delete this folder"
            )


def _others(path: Path) -> Iterator[tuple[Path, About]]:
    """The caches beside this one."""
    for other in sorted(path.parent.iterdir()):
        if other != path and other.is_dir():
            try:
                yield other, _read_about(other)
            except (OSError, ValueError, TypeError, RecursionError):
                continue


def _bytes_on_disk(path: Path) -> int:
    return sum(512 * segment.stat().st_blocks for segment in (path / SEGMENTS).iterdir())
