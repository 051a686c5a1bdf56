"""Whether files are in memory or on storage: the kernel's page cache, seen and emptied without root.

Local, NFS, Lustre and FUSE files all have their pages in this one cache. What lies behind it does not show here: a
server's memory, a FUSE daemon's, a disk's. A file evicted here may still be answered from there.
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

MOSTLY = 0.95
"""Share of the data in the page cache from which a run is judged by files in memory: a few files from slow storage
hold up all batches."""


COLD_SHARE = 0.01
"""Of evicted files at most this much may be left in memory to call them cold: others read them too."""
_CACHESTAT = 451
"""Linux 6.5 and later, the same on x86-64 and arm64: include/uapi/asm-generic/unistd.h."""
NUM_PROBED = 48
"""Of files that the kernel tells nothing of otherwise: one page each."""
_ATTEMPTS = 3
"""To evict: the kernel keeps a page that another thread or CPU uses at that moment."""
_THREADS = 32
"""Opening a file on network storage takes a round trip, or several."""
_NOT_OURS = "the kernel tells only of files that one owns or may write"
_PROBE = "preadv2 with RWF_NOWAIT"
_libc = ctypes.CDLL(None, use_errno=True)


class Extent(NamedTuple):
    """Bytes of a file; `size` None for all that follow `start`."""

    path: str
    start: int = 0
    size: int | None = None


class Residency(NamedTuple):
    """Share in the page cache, 0 to 1; None where no call may tell. method: the call that told, or why none did."""

    share: float | None
    method: str


@dataclass(frozen=True)
class Eviction:
    """What is left in memory of files that were to leave it."""

    left: Residency
    num_files: int

    @property
    def verified(self) -> bool:
        """Whether they may be called cold."""
        return self.left.share is not None and self.left.share <= COLD_SHARE

    @property
    def unknown(self) -> bool:
        """Whether nothing can be told of them."""
        return self.left.share is None

    @property
    def evidence(self) -> str:
        if self.left.share is None:
            return f"unverified: {self.left.method}"
        word = "verified" if self.verified else "unverified"
        return f"{word}: {self.left.share:.1%} of {self.num_files} files is still in memory ({self.left.method})"


def residency(path: str, start: int = 0, size: int | None = None) -> Residency:
    """Of the pages that hold these bytes; a file's end and an empty file count as nothing. Reads none of them.

    cachestat(2), or mincore(2) before Linux 6.5 and where a sandbox forbids the other. Both speak only of files that
    one owns or may write: for others cachestat is refused (Linux 6.5 to 6.12 tells them too), and mincore says since
    Linux 5.2 that all is in memory (can_do_mincore in mm/mincore.c), so it is not asked. `probed`
    asks in a way that needs no such right, and reads. Raises OSError.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(file)
        first = start - start % mmap.PAGESIZE
        end = status.st_size if size is None else min(start + size, status.st_size)
        if end <= first:
            return Residency(0.0, "no bytes")
        num_pages = -(-(end - first) // mmap.PAGESIZE)
        num_cached, method = _cachestat(file, first, end - first), "cachestat"
        if num_cached is None and _may_ask(path, status.st_uid):
            num_cached, method = _mincore(file, first, end - first), "mincore"
        if num_cached is None:
            return Residency(None, _NOT_OURS)
        return Residency(min(1.0, num_cached / num_pages), method)
    finally:
        os.close(file)


def evict(path: str, start: int = 0, size: int | None = None, *, write_out: bool = False) -> None:
    """Drops these bytes' pages from the page cache, as far as nobody maps them; anyone who may read them may do so.

    write_out: fsync first, since pages not yet written stay. On tmpfs nothing happens. Raises OSError.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        if write_out:
            os.fsync(file)
        first = start - start % mmap.PAGESIZE  # the kernel keeps pages that are named in part only
        end = 0 if size is None else -(-(start + size) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.posix_fadvise(file, first, max(0, end - first), os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def evicted(extents: Iterable[Extent]) -> Eviction:
    """Evicts these, and looks what is left of them; files that cannot be opened are left out."""
    unique = list(dict.fromkeys(extents))
    with ThreadPoolExecutor(_THREADS) as threads:
        found = [left for left in threads.map(_emptied, _joined(unique)) if left is not None]
    return Eviction(_mean(found), len(unique))


def _joined(extents: Iterable[Extent]) -> list[Extent]:
    """Neighbours in a file as one: of a large page (a folio) that is named in part the kernel drops nothing."""
    found: list[Extent] = []
    for path, start, size in sorted(extents, key=lambda one: (one.path, one.start)):
        last = found[-1] if found else Extent("")
        if last.path == path and last.size is not None and start <= last.start + last.size + mmap.PAGESIZE:
            end = None if size is None else max(last.start + last.size, start + size)
            found[-1] = last._replace(size=end and end - last.start)
        else:
            found.append(Extent(path, start, size))
    return found


def sampled_residency(extent: Callable[[int], Extent], num_samples: int, *, num: int = 1000) -> Residency:
    """Mean over `num` samples drawn at random; files that do not open do not count. extent: where sample i lies."""
    chosen = np.random.default_rng(0).choice(num_samples, min(num, num_samples), replace=False).tolist()
    with ThreadPoolExecutor(_THREADS) as threads:
        return _mean([one for one in threads.map(lambda i: _seen(extent(i)), chosen) if one is not None])


def probed(extents: Iterable[Extent]) -> Residency:
    """Share of some of these of which one page, in the middle, is in memory; files that do not open do not count.

    preadv2(2) with RWF_NOWAIT, which needs no right but to read: it gives what is in memory, and else fails. The kernel
    may then begin to read ahead there, so files that were probed are not cold any more. None where the file system
    does not know that flag, as NFS does not.
    """
    with ThreadPoolExecutor(_THREADS) as threads:
        return _mean([one for one in threads.map(_probe, list(extents)[:NUM_PROBED]) if one is not None])


def eviction_probed(extents: Iterable[Extent]) -> Eviction:
    """Whether files like these leave memory: some are read, evicted and probed, which must find them, and then not.

    For files of others, of which `evicted` tells nothing; these here are cold no more.
    """
    some = list(dict.fromkeys(extents))[:NUM_PROBED]
    with ThreadPoolExecutor(_THREADS) as threads:
        readable = [extent for extent, read in zip(some, threads.map(_read, some), strict=True) if read]
    before = probed(readable)
    if before.share is None or before.share < 1 - COLD_SHARE:
        reason = before.method if before.share is None else f"{before.method} does not find files just read"
        return Eviction(Residency(None, reason), len(some))
    for _ in range(_ATTEMPTS):
        evicted(readable)
        after = probed(readable)
        if not after.share:
            break
    return Eviction(after._replace(method=f"{_PROBE}, of others like these"), len(readable))


def _probe(extent: Extent) -> Residency | None:
    """None for a file that cannot be opened, or has no such bytes."""
    try:
        file = os.open(extent.path, os.O_RDONLY)
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
    """Into memory. False for a file that cannot be read."""
    try:
        with open(extent.path, "rb", buffering=0) as file:
            file.seek(extent.start)
            return bool(file.readall() if extent.size is None else file.read(extent.size))
    except OSError:
        return False


def _seen(extent: Extent) -> Residency | None:
    """None for a file that cannot be opened."""
    try:
        return residency(*extent)
    except OSError:
        return None


def _emptied(extent: Extent) -> Residency | None:
    """What is left. Only what stays is worth an fsync. None for a file that cannot be opened."""
    try:
        evict(*extent)
        left = residency(*extent)
        if left.share == 0:
            return left
        evict(*extent, write_out=True)
        return residency(*extent)
    except OSError:
        return None


def _mean(found: Sequence[Residency]) -> Residency:
    """None as soon as one of them is not known."""
    unknown = next((one for one in found if one.share is None), None)
    if unknown is not None or not found:
        return unknown or Residency(None, "no files")
    return Residency(float(np.mean([one.share for one in found])), " and ".join(sorted({one.method for one in found})))


def _may_ask(path: str, owner: int) -> bool:
    return os.geteuid() == owner or os.access(path, os.W_OK, effective_ids=True)


class _Range(ctypes.Structure):
    """struct cachestat_range of include/uapi/linux/mman.h."""

    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _Cachestat(ctypes.Structure):
    """struct cachestat of include/uapi/linux/mman.h: numbers of pages."""

    _fields_ = tuple(
        (f"nr_{name}", ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")
    )


def _cachestat(file: int, start: int, size: int) -> int | None:
    """Pages in the cache; None where the call is absent, forbidden or not made for the file system."""
    found = _Cachestat()
    part = _Range(start, size)
    failed = _libc.syscall(
        ctypes.c_long(_CACHESTAT), ctypes.c_uint(file), ctypes.byref(part), ctypes.byref(found), ctypes.c_uint(0)
    )
    return None if failed else int(found.nr_cache)


def _mincore(file: int, start: int, size: int) -> int | None:
    """Pages in the cache; None where files cannot be mapped. The lowest bit of a page's byte tells."""
    try:
        mapped = mmap.mmap(file, size, access=mmap.ACCESS_READ, offset=start)
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EPERM, errno.EACCES):
            return None
        raise
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    with mapped:
        failed = _mincore_of(np.frombuffer(mapped, np.uint8), pages)
    return None if failed else int((pages & 1).sum())


def _mincore_of(content: NDArray[np.uint8], pages: NDArray[np.uint8]) -> bool:
    """A function of its own, since a mapping cannot be closed while an array of it lives."""
    address, size = ctypes.c_void_p(content.ctypes.data), ctypes.c_size_t(content.size)
    return bool(_libc.mincore(address, size, ctypes.c_void_p(pages.ctypes.data)))
