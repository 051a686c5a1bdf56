"""Splits below a URL, of class folders, tars or Parquet files: listed once, then kept in data.cache_dir."""

import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from imagenet_opt.data.index.folder_index import SCAN_THREADS, split_of_classes
from imagenet_opt.data.index.index_cache import load, load_or_make, save, scan_each, tell_listed
from imagenet_opt.data.index.layout import Root, describe, is_image, kind
from imagenet_opt.data.index.parquet_index import parquet_files, read_parquet
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.index.tar_index import Tars, find_tars, scan_tars, split_of_tars
from imagenet_opt.data.index.tar_members import Read, StreamBytes
from imagenet_opt.data.storage.cache_folder import CacheFolder, bytes_of, cache_of, free_bytes
from imagenet_opt.data.storage.retry import OPENING_SECONDS, SparseWarnings, retry_transient, tell_once
from imagenet_opt.display.progress import progress, size
from imagenet_opt.errors import DatasetNotFound
from imagenet_opt.object_storage import FoundObject, ObjectStorage, is_web
from imagenet_opt.regular_file import open_regular, read_part

log = logging.getLogger(__name__)
T = TypeVar("T")

KEY = "data.root"
"""The config key of the URL, for messages."""
_PART = 2**23
"""Bytes of a request for a part of a tar."""
_warn = SparseWarnings(log)


def open_objects(url: str, cache_dir: Path, cache_gb: float | None = 0.0) -> Split:
    """Index of the images below `url`, in the order that a folder with the same files has; from the cache if the
    images were listed earlier, since each read checks that its object is still the listed object.

    cache_gb: data.cache_gb, for the local cache of samples, which tars fill when they are read for their index. If
    several processes have one cache folder, one process lists the objects and the others wait. Raises
    DatasetNotFound, EmptyClass, StorageFailed; DataError for tars that cannot be used.
    """
    if is_web(url):
        raise DatasetNotFound(
            f"{url} has no index.json, and a web server does not list its files ({KEY}); pack the data set first: "
            "imagenet-opt pack data.root=FOLDER out=PACKED, and upload PACKED"
        )
    place = f"{os.environ.get('AWS_ENDPOINT_URL', '')} {url}"  # another service may have the same names

    def make(cached: Path) -> Split:
        spool = TarSpool(cache_dir / "samples" / f"{cached.name}.spool", bytes_of(cache_gb))
        try:
            split = save(cached, _list(url, spool))
            if spool.folder.exists() and (cache := cache_of(split, cache_gb)) is not None:
                spool.move(split, cache)
            return split
        finally:
            spool.close()

    split, is_new = load_or_make(cache_dir, place.encode(), load, make)
    tell_listed(split, None if is_new or split.origin is None else split.origin.about.parent)
    return split


class ObjectRoot(Root):
    """The root of a data set in a bucket. objects: those that were listed, by their paths below it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.objects = dict[str, FoundObject]()

    def at(self, below: str) -> str:
        return f"{self.place}/{below}".rstrip("/")

    def _listed(self, below: str) -> tuple[list[str], list[str]]:
        url = self.at(below)
        folders, found = patiently(ObjectStorage(url, KEY, retries=False).entries, url)
        self.objects |= {os.path.join(below, each.path): each for each in found}
        return folders, [each.path for each in found]

    def read(self, name: str, most: int) -> bytes:
        return patiently(partial(ObjectStorage(self.place, KEY, retries=False).read, name, most=most), self.place)

    def etags(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.objects[name].etag for name in names)


def _list(url: str, spool: "TarSpool") -> Split:
    storage = ObjectStorage(url, KEY, retries=False)
    place, _, split = url.rpartition("/") if "/" in url.partition("://")[2] else (url, "", "")
    root = ObjectRoot(place)
    if tars := find_tars(root, split):
        below = tars.place.removeprefix(place).strip("/")
        return _read_tars(tars, [root.objects[os.path.join(below, name)] for name in tars.names], spool)
    folders, files = root.entries(split)
    if not folders:
        if parquet := parquet_files(root, split):
            return read_parquet(parquet)
        raise DatasetNotFound(
            f"no class folders below {url} ({KEY}, data.train_folder, data.val_folder); expected <class>/*.JPEG. "
            f"{describe(files, url, place)}"
        )
    found = scan_each("class folders", folders, partial(_images, storage), num_threads=SCAN_THREADS)
    by_class = {
        name: ([each.path.encode() for each in images], others)
        for name, (images, others) in zip(folders, found, strict=True)
    }
    return split_of_classes(
        url,
        by_class,
        Counter(),
        sizes=np.array([image.size for images, _ in found for image in images], np.int64),
        etags=np.array([image.etag.encode() for images, _ in found for image in images], np.bytes_),
    )


def patiently(request: Callable[[], T], name: str) -> T:
    """Result of a request while an index is opened; temporary errors are retried."""
    return retry_transient(request, name, OPENING_SECONDS, _warn)


def _images(storage: ObjectStorage, class_name: str) -> tuple[list[FoundObject], Counter[str]]:
    """The images in one class folder, in the order of their paths, and the kinds of other objects."""
    found = patiently(
        lambda: [each for portion in storage.objects(class_name) for each in portion], f"{storage.url}/{class_name}"
    )
    folders = {each for each in found if not each.size and "." not in each.path.rpartition("/")[2]}  # of consoles
    others = Counter(kind(each.path) for each in found if not is_image(each.path) and each not in folders)
    return sorted(each for each in found if is_image(each.path)), others


def _read_tars(tars: Tars, objects: Sequence[FoundObject], spool: "TarSpool") -> Split:
    """Read each tar once, in large parts, because a request for each header would take longer."""
    storage = ObjectStorage(tars.place, KEY, retries=False)

    def parts(number: int, tar: FoundObject) -> Iterator[bytes]:
        for start in range(0, tar.size, _PART):
            read = partial(storage.read, tar.path, start=start, size=min(_PART, tar.size - start), etag=tar.etag)
            with storage.explained():
                content = patiently(read, storage.name(tar.path))
            spool.add(number, start, content)
            yield content

    @contextmanager
    def open_tar(name: str) -> Iterator[tuple[Read, int]]:
        number = tars.names.index(name)
        yield StreamBytes(parts(number, objects[number])).read, objects[number].size

    total = sum(tar.size for tar in objects)
    tell_once(f"reading {len(objects)} tars of {tars.place}, {size(total)}, once, for the places of their images")
    samples = scan_tars(tars, open_tar, patience=0.0)
    return split_of_tars(tars, samples, etags=np.array([tar.etag.encode() for tar in objects], np.bytes_))


class TarSpool:
    """Copies of tars that are read once from a URL, until the places of all images are known and the local cache gets
    them. A copy has the offsets of its tar. Copies are removed at the end; those of a killed process, when the next
    begins.

    Threads may share it. most_bytes: of all copies; none are made beyond, or where less than 5 % of the disk would stay
    free.
    """

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
