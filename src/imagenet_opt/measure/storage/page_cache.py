"""Inspects and evicts files in the kernel's page cache, without root.

Local, NFS, Lustre and FUSE files all use the page cache. Caches of a server, a FUSE daemon or a disk are not
visible here. Such a cache may still answer reads of an evicted file.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.regular_file import open_regular

MOSTLY = 0.95
"""From this share of the data in the page cache, a run counts as reading from memory. A smaller share is not enough,
since a few files on slow storage delay all batches."""
COLD_SHARE = 0.01
"""Evicted files count as cold if at most this share is still in memory, as other processes read them too."""
_THREADS = 32
"""Threads, as opening a file on network storage takes one or more round trips."""
_NOT_OURS = "the kernel reports which files are in memory only for files that the user owns or may write"
_libc = ctypes.CDLL(None, use_errno=True)


class Extent(NamedTuple):
    """A range of bytes of a file; `size` None extends to the end of the file."""

    path: str
    start: int = 0
    size: int | None = None


class Residency(NamedTuple):
    """Share in the page cache, 0 to 1; None if unknown. method: the system call used, or why the share is unknown."""

    share: float | None
    method: str


@dataclass(frozen=True)
class Eviction:
    """Result of an eviction. left: share of the files that is still in memory."""

    left: Residency
    num_files: int

    @property
    def verified(self) -> bool:
        """Whether the files are cold."""
        return self.left.share is not None and self.left.share <= COLD_SHARE

    @property
    def evidence(self) -> str:
        if self.left.share is None:
            return f"unverified: {self.left.method}"
        word = "verified" if self.verified else "unverified"
        return f"{word}: {self.left.share:.1%} of {self.num_files} files is still in memory ({self.left.method})"


def residency(path: str, start: int = 0, size: int | None = None) -> Residency:
    """Residency of the pages of a range of bytes; the end of a file and an empty file give 0. Does not read the file.

    Uses mincore(2), which needs a file that the user owns or may write: for other files it reports since Linux 5.2 that
    everything is in memory (can_do_mincore in mm/mincore.c), so it is not called. Raises OSError.
    """
    file = open_regular(path)
    try:
        status = os.fstat(file)
        first = start - start % mmap.PAGESIZE
        end = status.st_size if size is None else min(start + size, status.st_size)
        if end <= first:
            return Residency(0.0, "no bytes")
        is_ours = os.geteuid() == status.st_uid or os.access(path, os.W_OK, effective_ids=True)
        share = _mincore(file, first, end - first) if is_ours else None
        return Residency(share, _NOT_OURS if share is None else "mincore")
    finally:
        os.close(file)


def evict(path: str, start: int = 0, size: int | None = None, *, write_out: bool = False) -> None:
    """Drop the pages of a range of bytes from the page cache; needs only the right to read. Mapped pages stay.

    write_out: fsync first, since unwritten pages stay. No effect on tmpfs. Raises OSError.
    """
    file = open_regular(path)
    try:
        if write_out:
            os.fsync(file)
        drop_pages(file, start, size)
    finally:
        os.close(file)


def drop_pages(file: int, start: int = 0, size: int | None = None) -> None:
    """Drop the pages of a range of bytes of an open file from the page cache; None: to its end. No effect on macOS,
    which has no posix_fadvise. Raises OSError."""
    if hasattr(os, "posix_fadvise"):
        first = start - start % mmap.PAGESIZE  # the kernel evicts only pages that lie completely in the range
        end = 0 if size is None else -(-(start + size) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.posix_fadvise(file, first, max(0, end - first), os.POSIX_FADV_DONTNEED)


def evicted(extents: Iterable[Extent]) -> Eviction:
    """Evict the extents and check the result; files that cannot be opened are left out."""
    unique = list(dict.fromkeys(extents))
    with ThreadPoolExecutor(_THREADS) as threads:
        return Eviction(_mean(threads.map(partial(_left, evicts=True), _joined(unique))), len(unique))


def _joined(extents: Iterable[Extent]) -> list[Extent]:
    """Join neighbouring extents of a file, since the kernel evicts a large page (folio) only as a whole."""
    joined: list[Extent] = []
    for path, start, size in sorted(extents, key=lambda extent: (extent.path, extent.start)):
        last = joined[-1] if joined else Extent("")
        if last.path == path and last.size is not None and start <= last.start + last.size + mmap.PAGESIZE:
            end = None if size is None else max(last.start + last.size, start + size)
            joined[-1] = last._replace(size=end and end - last.start)
        else:
            joined.append(Extent(path, start, size))
    return joined


def residency_of(extents: Iterable[Extent]) -> Residency:
    """Mean residency; files that do not open do not count."""
    with ThreadPoolExecutor(_THREADS) as threads:
        return _mean(threads.map(_left, extents))


def _left(extent: Extent, *, evicts: bool = False) -> Residency | None:
    """Residency of an extent, after an eviction if `evicts`; None for a file that cannot be opened."""
    try:
        if evicts:
            evict(*extent)
        left = residency(*extent)
        if evicts and left.share:  # pages that were not yet written stay
            evict(*extent, write_out=True)
            left = residency(*extent)
        return left
    except OSError:
        return None


def _mean(found: Iterable[Residency | None]) -> Residency:
    """The mean of those that are there; unknown as soon as one residency is unknown."""
    residencies = [residency for residency in found if residency is not None]
    unknown = next((residency for residency in residencies if residency.share is None), None)
    if unknown is not None or not residencies:
        return unknown or Residency(None, "no files")
    return Residency(float(np.mean([residency.share for residency in residencies])), "mincore")


def _mincore(file: int, start: int, size: int) -> float | None:
    """Share of the pages in the cache, by the lowest bit of each page's byte; None where files cannot be mapped."""
    try:
        mapped = mmap.mmap(file, size, access=mmap.ACCESS_READ, offset=start)
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EPERM, errno.EACCES):
            return None
        raise
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    with mapped:
        failed = _mincore_of(np.frombuffer(mapped, np.uint8), pages)
    return None if failed else float((pages & 1).mean())


def _mincore_of(content: NDArray[np.uint8], pages: NDArray[np.uint8]) -> bool:
    """Call mincore; a separate function, since a mapping cannot be closed while an array refers to it."""
    address, size = ctypes.c_void_p(content.ctypes.data), ctypes.c_size_t(content.size)
    return bool(_libc.mincore(address, size, ctypes.c_void_p(pages.ctypes.data)))
