"""Reads every file once on a mount that fetches files at the first read, so that training finds the data there."""

import errno
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from imagenet_opt import machine
from imagenet_opt.data.index.files import SplitFiles
from imagenet_opt.data.storage.read_pool import DaemonPool
from imagenet_opt.data.storage.retry import TRANSIENT, SparseWarnings, is_out, retry_transient
from imagenet_opt.errors import ReadTimeout, StorageFailed, printable
from imagenet_opt.hydrate import lustre
from imagenet_opt.regular_file import open_regular

log = logging.getLogger(__name__)

_BLOCK = 2**20
_SECONDS_BETWEEN_LOOKS = 0.2
_SILENCE_SECONDS = 1800.0
"""Time without a byte after which the command stops; hundreds of large shards from S3 may take almost half an hour."""


@dataclass(frozen=True)
class Fetch:
    """Files of a split to fetch. left: bool (num_files,), True until a file is fetched."""

    files: SplitFiles
    left: NDArray[np.bool_]


@dataclass
class Tally:
    """Progress: files fetched, their bytes, and path -> reason for files that cannot be read."""

    num_files: int = 0
    num_bytes: int = 0
    bad: dict[str, str] = field(default_factory=dict)

    @property
    def num_tried(self) -> int:
        return self.num_files + len(self.bad)


def hydrate(
    fetches: Sequence[Fetch],
    tally: Tally,
    *,
    in_flight: int,
    patience: float,
    on_progress: Callable[[Tally], None] = lambda tally: None,
) -> None:
    """Fetch every remaining file: by `lfs hsm_restore` where Lustre allows that, else by reading the whole file.

    A file that cannot be read is listed in `tally`. patience: seconds for which
    transient errors are retried.

    Raises StorageFailed where all files fail; ReadTimeout where the storage does not answer.
    """
    for fetch in fetches:
        if lustre.can_restore(fetch.files.folder):
            _restore(fetch, tally, in_flight, on_progress)
        _read(fetch, tally, in_flight, patience, on_progress)


def _restore(fetch: Fetch, tally: Tally, in_flight: int, on_progress: Callable[[Tally], None]) -> None:
    def record(number: int) -> None:
        fetch.left[number] = False
        tally.num_files += 1
        tally.num_bytes += os.stat(fetch.files.path(number)).st_size
        on_progress(tally)

    try:
        lustre.restore(fetch.files, np.flatnonzero(fetch.left).tolist(), in_flight=in_flight, on_done=record)
    except (lustre.LfsFailed, OSError) as error:
        log.warning(f"{error}; reading the remaining files instead")


def _read(fetch: Fetch, tally: Tally, in_flight: int, patience: float, on_progress: Callable[[Tally], None]) -> None:
    left = np.flatnonzero(fetch.left).tolist()
    reader, numbers = FileReader(fetch, tally, patience), iter(left)
    threads = DaemonPool(min(in_flight, len(left)))
    running: set[Future[None]] = {threads.submit(reader.read_each, numbers) for _ in range(threads.num)}
    try:
        while running:
            done, running = wait(running, _SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
            for finished in done:
                finished.result()
            reader.check_silence()
            on_progress(tally)
    finally:
        reader.stopped = True


class FileReader:
    """Reads whole files of a split and discards the bytes; may be called from several threads.

    stopped: set to end the threads. On FUSE the reads bypass the page cache where the mount allows that: reads through
    the page cache use the kernel's read-ahead, which has at most 12 requests in flight for all threads
    (max_background of docs.kernel.org/filesystems/fuse.html).
    """

    def __init__(self, fetch: Fetch, tally: Tally, patience: float) -> None:
        self.fetch, self.tally, self.patience = fetch, tally, patience
        self.stopped = False
        self._lock = threading.Lock()
        self._local = threading.local()
        self._open: set[int] = set()
        self._answered_at = time.monotonic()
        self._warn = SparseWarnings(log)
        self._direct = "(fuse" in machine.mount_of(str(fetch.files.folder))

    def read_each(self, numbers: Iterator[int]) -> None:
        """Read all files of an iterator that the threads share. Raises StorageFailed."""
        while not self.stopped:
            with self._lock:
                number = next(numbers, None)
            if number is None:
                return
            self.read(number)

    def read(self, number: int) -> None:
        """Read a file and record the result. Raises StorageFailed."""
        path, reason, num_bytes = self.fetch.files.path(number), "", 0
        self._open.add(number)
        try:
            num_bytes = retry_transient(partial(self._read, path), printable(path), self.patience, self._warn)
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in TRANSIENT:
                self._check_storage(number, reason)
        finally:
            self._open.discard(number)
        with self._lock:
            if reason:
                self.tally.bad[path] = reason
            else:
                self.tally.num_files += 1
                self.tally.num_bytes += num_bytes
                self.fetch.left[number] = False

    def check_silence(self) -> None:
        """Raises ReadTimeout after half an hour without a byte."""
        if time.monotonic() - self._answered_at < _SILENCE_SECONDS:
            return
        name = printable(self.fetch.files.path(next(iter(tuple(self._open)), 0)))
        raise ReadTimeout(
            f"no answer for {_SILENCE_SECONDS:g} s from {machine.mount_of(name)} to reads of {name} and other files; "
            "check that ls works on the mount, then run the same command again"
        )

    def _read(self, path: str) -> int:
        """Read a file; returns its size in bytes."""
        if self._direct:
            try:
                return self._read_as(path, os.O_RDONLY | os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = False  # this mount does not support O_DIRECT
        return self._read_as(path, os.O_RDONLY)

    def _read_as(self, path: str, flags: int) -> int:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = mmap.mmap(-1, _BLOCK)  # page-aligned, as O_DIRECT requires
        num_bytes = 0
        descriptor = open_regular(path, flags)
        try:
            while num_read := os.readv(descriptor, [self._local.buffer]):
                num_bytes += num_read
                self._answered_at = time.monotonic()
        finally:
            os.close(descriptor)
        self._answered_at = time.monotonic()
        return num_bytes

    def _check_storage(self, number: int, reason: str) -> None:
        """Raises StorageFailed if other files fail with the same kind of error."""
        if not is_out(number, self.fetch.files.num, self._touch_other):
            return
        name = printable(self.fetch.files.path(number))
        raise StorageFailed(
            f"reads from {machine.mount_of(name)} have failed for {self.patience:g} s ({name} and others): {reason}; "
            "check that ls works on the mount, then run the same command again"
        )

    def _touch_other(self, number: int) -> None:
        with open(self.fetch.files.path(number), "rb", buffering=0, opener=open_regular) as file:
            file.read(1)
