"""Reads every file once on a mount that fetches files at the first read, so that training finds the data there."""

import errno
import logging
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np

from imagenet_opt import machine
from imagenet_opt.config.dataset import DataSet
from imagenet_opt.data.index.files import SplitFiles, files_of, status_of
from imagenet_opt.data.storage.read_pool import DaemonPool
from imagenet_opt.data.storage.retry import TRANSIENT, SparseWarnings, is_out, retry_transient
from imagenet_opt.display.progress import duration, progress, size
from imagenet_opt.display.terminal_table import print_sentence
from imagenet_opt.errors import StorageFailed, printable
from imagenet_opt.regular_file import open_regular

log = logging.getLogger(__name__)

_BLOCK = 2**20
_SECONDS_BETWEEN_LOOKS = 0.2
_LISTED = 100
"""Most lines about what could not be read that are printed."""


@dataclass
class Tally:
    """Progress: files fetched, their bytes, and path -> reason for files that cannot be read."""

    num_files: int = 0
    num_bytes: int = 0
    bad: dict[str, str] = field(default_factory=dict)

    @property
    def num_tried(self) -> int:
        return self.num_files + len(self.bad)


def hydrate(data: DataSet, *, in_flight: int) -> Tally:
    """Read the files of both splits, on Lustre those without data there, and print the result.

    Raises StorageFailed where all files fail.
    """
    splits = {files.folder: files for files in (files_of(data.open(split)) for split in ("train", "val"))}
    left = {folder: _without_data(files) for folder, files in splits.items()}
    tally, total, began = Tally(), sum(map(len, left.values())), time.perf_counter()
    if not total:
        print("nothing to do: Lustre holds the data of all files")
        return tally
    try:
        with progress("hydrating", "files") as show:
            for folder, files in splits.items():
                reader = FileReader(files, tally, data.loading.read_timeout / 2)
                reader.read_all(left[folder], in_flight, lambda: show(tally.num_tried, total, tally.num_bytes))
    except KeyboardInterrupt:
        print(f"stopped with {total - tally.num_tried} files left; run the same command again", file=sys.stderr)
        raise
    bad = (f"{path}: {reason}" for path, reason in tally.bad.items())
    print_tally(tally, bad, time.perf_counter() - began, in_flight, done="hydrated", unit="files")
    return tally


def _without_data(files: SplitFiles) -> list[int]:
    """The files to fetch: on Lustre those without data; elsewhere all, since no other file system tells."""
    if not machine.is_lustre(files.folder):
        return list(range(files.num))
    with progress("looking", "files") as show:
        missing: list[int] = np.flatnonzero(status_of(files, show).without_data).tolist()
    line = f"{files.folder}: Lustre does not hold the data of {len(missing)} of {files.num} files"
    print(printable(line), flush=True)
    return missing


def print_tally(tally: Tally, bad: Iterable[str], seconds: float, in_flight: int, *, done: str, unit: str) -> None:
    """Print the lines `bad` about what could not be read, and the result. done, unit: what was done with what."""
    for line in islice(bad, _LISTED):
        print(printable(line))
    if len(tally.bad) > _LISTED:
        print(f"and {len(tally.bad) - _LISTED} more")
    print_sentence(
        f"{done} {tally.num_files} {unit}, {size(tally.num_bytes)}, in {duration(seconds)}: "
        f"{tally.num_files / seconds:.0f} {unit}/s, {tally.num_bytes / 1e6 / seconds:.1f} MB/s, {in_flight} in flight; "
        f"{f'{len(tally.bad)} could not be read (above)' if tally.bad else 'none failed'}"
    )


class FileReader:
    """Reads whole files of a split and discards the bytes, in several threads.

    patience: seconds for which transient errors are retried. On FUSE the reads bypass the page cache where the mount
    allows that: reads through the page cache use the kernel's read-ahead, which has at most 12 requests in flight for
    all threads (max_background of docs.kernel.org/filesystems/fuse.html).
    """

    def __init__(self, files: SplitFiles, tally: Tally, patience: float) -> None:
        self.files, self.tally, self.patience = files, tally, patience
        self._stopped = False
        self._lock = threading.Lock()
        self._local = threading.local()
        self._warn = SparseWarnings(log)
        self._direct = "(fuse" in machine.mount_of(str(files.folder))

    def read_all(self, numbers: list[int], in_flight: int, on_progress: Callable[[], None]) -> None:
        """Read these files, `in_flight` at a time; those that cannot be read are listed in the tally.

        Raises StorageFailed where all files fail.
        """
        left, threads = iter(numbers), DaemonPool(min(in_flight, len(numbers)))
        running: set[Future[None]] = {threads.submit(self._read_each, left) for _ in range(threads.num)}
        try:
            while running:
                done, running = wait(running, _SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
                for finished in done:
                    finished.result()
                on_progress()
        finally:
            self._stopped = True

    def _read_each(self, numbers: Iterator[int]) -> None:
        while not self._stopped:
            with self._lock:
                number = next(numbers, None)
            if number is None:
                return
            self._read(number)

    def _read(self, number: int) -> None:
        path, reason, num_bytes = self.files.path(number), "", 0
        try:
            num_bytes = retry_transient(partial(self._read_whole, path), printable(path), self.patience, self._warn)
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in TRANSIENT and is_out(number, self.files.num, self._touch):
                raise StorageFailed(
                    f"reads from {machine.mount_of(path)} have failed for {self.patience:g} s ({printable(path)} and "
                    f"others): {reason}; check that ls works on the mount, then run the same command again"
                ) from error
        with self._lock:
            if reason:
                self.tally.bad[path] = reason
            else:
                self.tally.num_files += 1
                self.tally.num_bytes += num_bytes

    def _touch(self, number: int) -> None:
        with open(self.files.path(number), "rb", buffering=0, opener=open_regular) as file:
            file.read(1)

    def _read_whole(self, path: str) -> int:
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
        descriptor, num_bytes = open_regular(path, flags), 0
        try:
            while num_read := os.readv(descriptor, [self._local.buffer]):
                num_bytes += num_read
        finally:
            os.close(descriptor)
        return num_bytes
