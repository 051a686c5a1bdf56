"""Copies of tars that are read once from a URL, until the places of all images are known and the local cache gets
them.

A copy has the offsets of its tar. Copies are removed at the end; those of a killed process, when the next begins.
"""

import shutil
import threading
from pathlib import Path

import numpy as np

from imagenet_opt.data.index.split import Split
from imagenet_opt.data.storage.cache_folder import CacheFolder, free_bytes
from imagenet_opt.display.progress import progress
from imagenet_opt.regular_file import open_regular, read_part


class TarSpool:
    """Threads may share it. most_bytes: of all copies; none are made beyond, or where less than 5 % of the disk would
    stay free."""

    def __init__(self, folder: Path, most_bytes: float) -> None:
        self.folder = folder
        self._left, self._lock, self._dropped = most_bytes, threading.Lock(), set[int]()
        shutil.rmtree(folder, ignore_errors=True)

    def add(self, number: int, start: int, content: bytes) -> None:
        """Keep a part of the tar of this number, unless there is no room for all of it."""
        with self._lock:
            self._left -= len(content)
            is_kept = number not in self._dropped and self._left >= 0
        try:
            if is_kept:
                self.folder.mkdir(parents=True, exist_ok=True)
                is_kept = free_bytes(self.folder) >= len(content)
            if is_kept:
                with open(self._copy(number), "r+b" if start else "wb") as file:
                    file.seek(start)
                    file.write(content)
        except OSError:
            is_kept = False
        if not is_kept:
            self._dropped.add(number)
            self._copy(number).unlink(missing_ok=True)

    def move(self, split: Split, cache: CacheFolder) -> None:
        """Move the images of `split` from the copies of its tars into its cache, and remove the copies."""
        ends = np.searchsorted(split.container_ids, np.arange(len(split.containers)), "right").tolist()
        with progress("filling the cache", "images") as show:
            for number, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
                if self._copy(number).exists():
                    self._move(number, range(first, end), split, cache)
                show(end, len(split))

    def _move(self, number: int, rows: range, split: Split, cache: CacheFolder) -> None:
        with open(self._copy(number), "rb", 0, opener=open_regular) as file:
            for row in rows:
                cache.write(row, read_part(file.fileno(), int(split.offsets[row]), int(split.sizes[row])))
        self._copy(number).unlink()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _copy(self, number: int) -> Path:
        return self.folder / f"{number:05d}"
