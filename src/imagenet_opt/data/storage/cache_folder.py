"""A local copy of remote samples on disk.

Each sample has a fixed place, because the index has the sizes of all samples: samples follow one another in the order
of the index, in sparse files of about 64 MiB. So there is no file per image, and no index that changes.

    starts          int64 (n + 1,): where each sample begins, and where the last one ends
    state           uint8 (n,): 1 for a sample that is present, else 0
    checksums       uint32 (n,): zlib.crc32 of the bytes of a present sample
    segments/00007  the samples that begin from 7 x 64 MiB to 8 x 64 MiB

All processes of a machine map the columns, and so share them. The bytes of a sample are written before its checksum,
and its checksum before its state: a killed process leaves whole samples. After a power cut the checksum may not fit.
Two processes that fetch the same sample write the same bytes at the same place.
"""

import errno
import logging
import os
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imagenet_opt.atomic_file import replacing
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.display.progress import size as size_text
from imagenet_opt.file_lock import lock_file
from imagenet_opt.measure.storage.page_cache import drop_pages
from imagenet_opt.regular_file import read_part

log = logging.getLogger(__name__)

_SEGMENTS = "segments"
_COLUMNS = {"state": np.uint8, "checksums": np.uint32, "starts": np.int64}
_LOCK_SECONDS = 60.0
_SEGMENT_BYTES = 2**26
_FREE_SHARE = 0.05
"""Share of the disk that stays free, as in Mountpoint for Amazon S3."""
_LOST = (errno.ENOENT, errno.EIO, errno.ESTALE)
"""Errors of a segment that someone removed, or that the disk lost."""


class CacheFolder:
    """The samples on disk. Threads, forked and unpickled processes may share it.

    num_kept: samples before this number are kept, the others never. stopped: why nothing more is written; "" while the
    folder can be written. drop_pages: whether to evict bytes from the page cache after reading. checked: uint8 (n + 1,)
    in the shared memory of a run: 1 for samples whose bytes fit their checksum since the run began, and at the end 1
    once a warning told that the folder cannot be written.
    """

    def __init__(self, path: Path, num_kept: int, *, drop_pages: bool = False, checked: Tensor | None = None) -> None:
        self.path, self.num_kept, self.drop_pages, self.stopped = path, num_kept, drop_pages, ""
        self.starts: NDArray[np.int64] = _mapped(path / "starts", "r")
        self.state: NDArray[np.uint8] = _mapped(path / "state", "r+")
        self.checksums: NDArray[np.uint32] = _mapped(path / "checksums", "r+")
        if checked is None:
            checked = torch.zeros(len(self.starts), dtype=torch.uint8).share_memory_()
        self._shared = checked
        self._checked: NDArray[np.uint8] = self._shared.numpy()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        again = partial(CacheFolder, drop_pages=self.drop_pages, checked=self._shared)
        return again, (self.path, self.num_kept)

    def keeps(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each sample is written once it is fetched."""
        return (indices < self.num_kept) & (not self.stopped)

    def holds(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each sample is present."""
        held: NDArray[np.bool_] = self.state[indices] == 1
        return held

    def serves(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether later epochs find each sample here: it is written once it is fetched, or already present, also where
        the cache had more room before."""
        return self.keeps(indices) | self.holds(indices)

    def served_bytes(self) -> int:
        """Bytes of all samples that later epochs find here."""
        return int(np.diff(self.starts)[self.serves(np.arange(len(self.state)))].sum())

    def missing(self) -> NDArray[np.int64]:
        """The samples that are kept but not present."""
        return np.flatnonzero(self.state[: self.num_kept] != 1)

    def read(self, index: int) -> bytes | None:
        """Bytes of a present sample; None if they are damaged or gone, and then the sample is absent. Raises OSError
        without file descriptors or memory."""
        segment, offset, size = self.place(index)
        try:
            encoded = self._pread(segment, offset, size)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            encoded = b""
            self._checked[:-1] = 0  # a segment that was removed comes back with holes
        if len(encoded) == size and self._checked[index]:
            return encoded
        if len(encoded) != size or zlib.crc32(encoded) != self.checksums[index]:
            self.state[index] = 0
            return None
        self._checked[index] = 1
        return encoded

    def write(self, index: int, encoded: bytes) -> None:
        """Keep a sample, if it is one to keep and has the size that the index says. If that fails, nothing more is
        written by this process, and one process of the run logs a warning."""
        segment, offset, size = self.place(index)
        if not self.keeps(np.asarray(index)) or len(encoded) != size:
            return
        try:
            if free_bytes(self.path) < 0:
                raise OSError(errno.ENOSPC, f"less than {100 * _FREE_SHARE:g} % of the disk is free")
            _pwrite(segment, offset, encoded)
        except OSError as error:
            self._stop(error.strerror or str(error))
            return
        self.checksums[index] = zlib.crc32(encoded)
        self._checked[index] = 1
        self.state[index] = 1

    def place(self, index: int) -> tuple[str, int, int]:
        """Path of the segment, and offset and size of the sample in it."""
        start, end = self.starts[index : index + 2].tolist()
        segment, offset = divmod(start, _SEGMENT_BYTES)
        return f"{self.path}/{_SEGMENTS}/{segment:05d}", offset, end - start

    def _pread(self, segment: str, offset: int, size: int) -> bytes:
        with open(segment, "rb", buffering=0) as file:
            encoded = read_part(file.fileno(), offset, size)
            if self.drop_pages:
                drop_pages(file.fileno(), offset, size)
            return encoded

    def _stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason
        if not self._checked[-1]:
            self._checked[-1] = 1
            log.warning(
                f"{self.path} (data.cache_dir) cannot be written: {reason}; samples that are not there yet are read "
                "from the storage in each epoch. Free room, or set data.cache_dir to another disk"
            )


def free_bytes(path: Path) -> float:
    """Bytes that may be written to the disk; negative if less than 5 % of the disk is free."""
    disk = os.statvfs(path)
    return disk.f_frsize * (disk.f_bavail - _FREE_SHARE * disk.f_blocks)


def _mapped(path: Path, mode: Literal["r", "r+"]) -> NDArray[Any]:
    """A column; as an array, which is faster than a memmap, item by item."""
    return np.asarray(np.memmap(path, _COLUMNS[path.name], mode))


def _pwrite(segment: str, offset: int, content: bytes) -> None:
    descriptor = os.open(segment, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        left = memoryview(content)
        while left:
            written = os.pwrite(descriptor, left, offset)
            left, offset = left[written:], offset + written
    finally:
        os.close(descriptor)


def cache_of(split: Split, cache_gb: float | None, *, drop_pages: bool = False) -> CacheFolder | None:
    """The cache of a whole split below a URL; None if it has no index in data.cache_dir, or with cache_gb=0."""
    if cache_gb == 0 or split.origin is None:
        return None
    path = split.origin.about.parents[2] / "samples" / split.fingerprint  # in data.cache_dir
    return open_cache(path, split.place, split.sizes, most_bytes=bytes_of(cache_gb), drop_pages=drop_pages)


def bytes_of(cache_gb: float | None) -> float:
    """data.cache_gb in bytes."""
    return np.inf if cache_gb is None else cache_gb * 1e9


def open_cache(
    path: Path, url: str, sizes: NDArray[np.int64], *, most_bytes: float, drop_pages: bool = False
) -> CacheFolder | None:
    """The cache of the data set at `url`, made if it does not exist yet; None, with a warning, if that is impossible.

    path: changes with the content of the data set. sizes: bytes of each sample. most_bytes: limit of the samples that
    are kept. Fewer are kept if less than 5 % of the disk would stay free.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    try:
        _make_sure(path, starts)
        on_disk = sum(512 * segment.stat().st_blocks for segment in (path / _SEGMENTS).iterdir())
        room = on_disk + free_bytes(path)
        num_kept = max(0, int(np.searchsorted(starts, min(most_bytes, room), "right")) - 1)
        cache = CacheFolder(path, num_kept, drop_pages=drop_pages)
    except OSError as error:
        log.warning(
            f"{path} (data.cache_dir) cannot be a cache: {error.strerror or error}; each epoch reads all samples from "
            f"{url}. Set data.cache_dir to a folder on a local disk that can be written"
        )
        return None
    if (served := cache.served_bytes()) < starts[-1]:
        limit = "the disk, of which 5 % stay free" if room < most_bytes else "data.cache_gb"
        tell_once(
            f"{path} (data.cache_dir) keeps {size_text(served)} of the {size_text(int(starts[-1]))} of "
            f"{url}, and each epoch reads the rest from there; the limit is {limit}"
        )
    return cache


def _make_sure(path: Path, starts: NDArray[np.int64]) -> None:
    """Make an empty cache, unless there is a whole one. The columns have their full size at once, because a process
    that wrote to a mapped file on a full disk would be killed."""
    if _is_whole(path, starts):
        return
    (path / _SEGMENTS).mkdir(parents=True, exist_ok=True)
    lock = lock_file(path.parent / f"{path.name}.lock", wait_seconds=_LOCK_SECONDS, shared=True)
    if not _is_whole(path, starts):  # another process may have made the cache meanwhile
        for name, dtype in _COLUMNS.items():  # the starts last, because a cache is whole with them
            with replacing(path / name) as fresh:
                (starts if name == "starts" else np.zeros(len(starts) - 1, dtype)).tofile(fresh)
    del lock


def _is_whole(path: Path, starts: NDArray[np.int64]) -> bool:
    try:
        lengths = {name: (path / name).stat().st_size / np.dtype(dtype).itemsize for name, dtype in _COLUMNS.items()}
        return (
            lengths == dict.fromkeys(_COLUMNS, len(starts) - 1) | {"starts": len(starts)}
            and np.array_equal(np.fromfile(path / "starts", np.int64), starts)
            and (path / _SEGMENTS).is_dir()
        )
    except OSError:
        return False
