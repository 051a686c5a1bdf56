"""Fetches what the first epoch would wait for: files of a mount that fetches them at their first read, or the samples
of a URL that the local cache lacks."""

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

from imagenet_opt import machine
from imagenet_opt.config.dataset import DataSet
from imagenet_opt.data.index.files import SplitFiles, files_of, status_of
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.storage.read_pool import DaemonPool, ReadPool
from imagenet_opt.data.storage.retry import TRANSIENT, SparseWarnings, is_out, retry_transient
from imagenet_opt.data.storage.store import CachedStore, Store
from imagenet_opt.display.progress import duration, progress, size
from imagenet_opt.display.terminal_table import print_sentence
from imagenet_opt.errors import BadSample, ConfigError, StorageFailed, printable
from imagenet_opt.object_storage import is_url
from imagenet_opt.regular_file import open_regular

log = logging.getLogger(__name__)

_BLOCK = 2**20
_SECONDS_BETWEEN_LOOKS = 0.2
_PORTION = 1024
"""Samples whose requests are planned together."""
_LISTED = 100
"""Most lines about what could not be read that are printed."""


@dataclass
class Tally:
    """Progress: files or samples fetched, their bytes, and a line for each that cannot be read."""

    num_files: int = 0
    num_bytes: int = 0
    bad: list[str] = field(default_factory=list)


def hydrate(data: DataSet, *, in_flight: int) -> Tally:
    """Fetch both splits, and print the result. Raises StorageFailed where all files fail; of a URL also ReadTimeout,
    and ConfigError if the cache cannot be written."""
    found = map(data.open, ("train", "val"))
    indexes = list({(index.place, index.containers): index for index in found}.values())
    timeout = data.loading.read_timeout
    if is_url(data.root):
        return fetch([CacheFiller(i.place, store_of(i, data.loading), timeout) for i in indexes], in_flight)
    return fetch([FileReader(files_of(i), timeout / 2) for i in indexes], in_flight)


def fetch(splits: Sequence["CacheFiller | FileReader"], in_flight: int) -> Tally:
    """Fetch the splits, and print the result."""
    tally, total, began = Tally(), sum(split.num_left for split in splits), time.perf_counter()
    if not total:
        print("nothing to do: no file is left to fetch")
        return tally
    with progress("fetching", "files") as show:
        for split in splits:
            split.fetch(tally, in_flight, lambda: show(tally.num_files + len(tally.bad), total, tally.num_bytes))
    for line in tally.bad[:_LISTED]:
        print(printable(line))
    if len(tally.bad) > _LISTED:
        print(f"and {len(tally.bad) - _LISTED} more")
    seconds = time.perf_counter() - began
    print_sentence(
        f"fetched {tally.num_files} files, {size(tally.num_bytes)}, in {duration(seconds)}: "
        f"{tally.num_files / seconds:.0f} files/s, {tally.num_bytes / 1e6 / seconds:.1f} MB/s, {in_flight} in flight; "
        f"{f'{len(tally.bad)} could not be read (above)' if tally.bad else 'none failed'}"
    )
    return tally


class CacheFiller:
    """Fetches the samples of a URL that the local cache keeps and lacks.

    num_left: their number. Raises ConfigError if the store has no cache.
    """

    def __init__(self, url: str, store: Store, read_timeout: float) -> None:
        if not isinstance(store, CachedStore):
            raise ConfigError(
                f"there is no cache of {url} to fill; set data.cache_gb=null, and data.cache_dir to a folder on a "
                "local disk"
            )
        self.store, self.read_timeout = store, read_timeout
        num_kept, self.num_left = store.folder.num_kept, len(store.folder.missing())
        part = "" if num_kept == len(store) else f" of {len(store)}, the part that fits (data.cache_gb, data.cache_dir)"
        line = f"{url}: {self.num_left} images to fetch; the cache has {num_kept - self.num_left}, and keeps {num_kept}"
        print(printable(line + part), flush=True)

    def fetch(self, tally: Tally, in_flight: int, on_progress: Callable[[], None]) -> None:
        """Fetch all; samples that cannot be read are listed in the tally. Raises StorageFailed where all fail,
        ReadTimeout, and ConfigError if the cache cannot be written."""
        self._check_writable()
        pool, missing = ReadPool(self.store, timeout_seconds=self.read_timeout), self.store.folder.missing()
        portions = (missing[start : start + _PORTION] for start in range(0, len(missing), _PORTION))
        requests = (portion[group] for portion in portions for group in self.store.groups(portion))
        for samples in pool.read_all(requests, in_flight):
            for sample in samples:
                if isinstance(sample, BadSample):
                    tally.bad.append(str(sample))
                else:
                    tally.num_files += 1
                    tally.num_bytes += len(sample)
            self._check_writable()
            on_progress()

    def _check_writable(self) -> None:
        if reason := self.store.folder.stopped:
            raise ConfigError(
                f"{self.store.folder.path} (data.cache_dir) cannot be written: {reason}; free room, or set "
                "data.cache_dir to another disk, or keep fewer samples with data.cache_gb, and run the same command "
                "again; it resumes"
            )


class FileReader:
    """Reads whole files of a split and discards the bytes, in several threads: on Lustre the files without data there,
    elsewhere all, since no other file system tells.

    patience: seconds for which transient errors are retried. On FUSE the reads bypass the page cache where the mount
    allows that: reads through the page cache use the kernel's read-ahead, which has at most 12 requests in flight for
    all threads (max_background of docs.kernel.org/filesystems/fuse.html).
    """

    def __init__(self, files: SplitFiles, patience: float) -> None:
        self.files, self.patience, self.numbers = files, patience, list(range(files.num))
        if machine.is_lustre(files.folder):
            with progress("looking", "files") as show:
                self.numbers = np.flatnonzero(status_of(files, show).without_data).tolist()
            line = f"{files.folder}: Lustre does not hold the data of {len(self.numbers)} of {files.num} files"
            print(printable(line), flush=True)
        self.num_left = len(self.numbers)
        self._stopped = False
        self._lock = threading.Lock()
        self._local = threading.local()
        self._warn = SparseWarnings(log)
        self._direct = "(fuse" in machine.mount_of(str(files.folder))

    def fetch(self, tally: Tally, in_flight: int, on_progress: Callable[[], None]) -> None:
        """Fetch all; files that cannot be read are listed in the tally. Raises StorageFailed where all fail."""
        left, threads = iter(self.numbers), DaemonPool(min(in_flight, len(self.numbers)))
        running: set[Future[None]] = {threads.submit(self._read_each, left, tally) for _ in range(threads.num)}
        try:
            while running:
                done, running = wait(running, _SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
                for finished in done:
                    finished.result()
                on_progress()
        finally:
            self._stopped = True

    def _read_each(self, numbers: Iterator[int], tally: Tally) -> None:
        while not self._stopped:
            with self._lock:
                number = next(numbers, None)
            if number is None:
                return
            self._read(number, tally)

    def _read(self, number: int, tally: Tally) -> None:
        path, reason, num_bytes = self.files.path(number), "", 0
        try:
            num_bytes = retry_transient(partial(self._read_whole, path), path, self.patience, self._warn)
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in TRANSIENT and is_out(number, self.files.num, self._touch):
                raise StorageFailed(
                    f"reads from {machine.mount_of(path)} have failed for {self.patience:g} s ({path} and "
                    f"others): {reason}; check that ls works on the mount, then run the same command again"
                ) from error
        with self._lock:
            if reason:
                tally.bad.append(f"{path}: {reason}")
            else:
                tally.num_files += 1
                tally.num_bytes += num_bytes

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
