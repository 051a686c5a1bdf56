"""Inspects and evicts files in the kernel's page cache, without root.

Local, NFS, Lustre and FUSE files all use the page cache. Caches of a server, a FUSE daemon or a disk are not
visible here. Such a cache may still answer reads of an evicted file.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.regular_file import open_regular, read_part

MOSTLY = 0.95
"""From this share of the data in the page cache, a run counts as reading from memory. A smaller share is not enough,
since a few files on slow storage delay all batches."""
COLD_SHARE = 0.01
"""Evicted files count as cold if at most this share is still in memory, as other processes read them too."""
NUM_PROBED = 48
"""Files of other owners that are probed, one page each."""
_ATTEMPTS = 3
"""Attempts to evict, since the kernel does not evict a page that another thread or CPU is using."""
_THREADS = 32
"""Threads, as opening a file on network storage takes one or more round trips."""
_NOT_OURS = "the kernel reports which files are in memory only for files that the user owns or may write"
_PROBE = "preadv2 with RWF_NOWAIT"
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
    def unknown(self) -> bool:
        """Whether the share in memory is unknown."""
        return self.left.share is None

    @property
    def evidence(self) -> str:
        if self.left.share is None:
            return f"unverified: {self.left.method}"
        word = "verified" if self.verified else "unverified"
        return f"{word}: {self.left.share:.1%} of {self.num_files} files is still in memory ({self.left.method})"


def residency(path: str, start: int = 0, size: int | None = None) -> Residency:
    """Residency of the pages of a range of bytes; the end of a file and an empty file give 0. Does not read the file.

    Uses mincore(2), which needs a file that the user owns or may write: for other files it reports since Linux 5.2 that
    everything is in memory (can_do_mincore in mm/mincore.c), so it is not called. `probed` needs no such right, but
    reads. Raises OSError.
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
        residencies = [left for left in threads.map(_emptied, _joined(unique)) if left is not None]
    return Eviction(_mean(residencies), len(unique))


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


def sampled_residency(extent: Callable[[int], Extent], num_samples: int, *, num: int = 1000) -> Residency:
    """Mean residency of `num` random samples; files that do not open do not count. extent: location of sample i."""
    chosen = np.random.default_rng(0).choice(num_samples, min(num, num_samples), replace=False).tolist()
    with ThreadPoolExecutor(_THREADS) as threads:
        residencies = threads.map(lambda i: _residency_or_none(extent(i)), chosen)
        return _mean([each for each in residencies if each is not None])


def probed(extents: Iterable[Extent]) -> Residency:
    """Share of the first NUM_PROBED extents whose middle page is in memory; files that do not open do not count.

    Uses preadv2(2) with RWF_NOWAIT, which needs only the right to read: it returns data in memory, and fails otherwise.
    The kernel may then read ahead, so probed files are no longer cold. None on file systems without this flag, such as
    NFS.
    """
    with ThreadPoolExecutor(_THREADS) as threads:
        return _mean([each for each in threads.map(_probe, list(extents)[:NUM_PROBED]) if each is not None])


def eviction_probed(extents: Iterable[Extent]) -> Eviction:
    """Test eviction on some extents: read and probe them (all must be in memory), evict and probe again (none may be).

    For files of other owners, whose residency `evicted` cannot check. The tested files are no longer cold.
    """
    tested = list(dict.fromkeys(extents))[:NUM_PROBED]
    with ThreadPoolExecutor(_THREADS) as threads:
        readable = [extent for extent, read in zip(tested, threads.map(_read, tested), strict=True) if read]
    before = probed(readable)
    if before.share is None or before.share < 1 - COLD_SHARE:
        reason = before.method if before.share is None else f"{before.method} does not detect recently read files"
        return Eviction(Residency(None, reason), len(tested))
    for _ in range(_ATTEMPTS):
        evicted(readable)
        after = probed(readable)
        if not after.share:
            break
    return Eviction(after._replace(method=f"{_PROBE}, on a sample of similar files"), len(readable))


def _probe(extent: Extent) -> Residency | None:
    """Residency of the middle page; None for a file that cannot be opened or is too short."""
    try:
        file = open_regular(extent.path)
    except OSError:
        return None
    try:
        size = os.fstat(file).st_size - extent.start if extent.size is None else extent.size
        read = os.preadv(file, [bytearray(1)], extent.start + size // 2, os.RWF_NOWAIT)
        return Residency(1.0, _PROBE) if read else None
    except BlockingIOError:
        return Residency(0.0, _PROBE)
    except OSError as error:
        return Residency(None, f"{_NOT_OURS} ({_PROBE}: {error.strerror})")
    finally:
        os.close(file)


def _read(extent: Extent) -> bool:
    """Read an extent into memory; returns False for a file that cannot be read."""
    try:
        with open(extent.path, "rb", buffering=0, opener=open_regular) as file:
            file.seek(extent.start)
            return bool(read_part(file.fileno()) if extent.size is None else file.read(extent.size))
    except OSError:
        return False


def _residency_or_none(extent: Extent) -> Residency | None:
    """Residency of an extent; None for a file that cannot be opened."""
    try:
        return residency(*extent)
    except OSError:
        return None


def _emptied(extent: Extent) -> Residency | None:
    """Evict an extent, with fsync only if pages stay; returns the residency, None if the file cannot be opened."""
    try:
        evict(*extent)
        left = residency(*extent)
        if left.share == 0:
            return left
        evict(*extent, write_out=True)
        return residency(*extent)
    except OSError:
        return None


def _mean(residencies: Sequence[Residency]) -> Residency:
    """The mean; unknown as soon as one residency is unknown."""
    unknown = next((residency for residency in residencies if residency.share is None), None)
    if unknown is not None or not residencies:
        return unknown or Residency(None, "no files")
    methods = sorted({residency.method for residency in residencies})
    return Residency(float(np.mean([residency.share for residency in residencies])), " and ".join(methods))


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
