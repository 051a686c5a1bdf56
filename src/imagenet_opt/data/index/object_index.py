"""Splits below a URL, of class folders, tars or Parquet files: listed once, then kept in data.cache_dir."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from imagenet_opt.data.index.folder_index import SCAN_THREADS, split_of_classes
from imagenet_opt.data.index.index_cache import load, load_or_make, save, scan_each, tell_listed
from imagenet_opt.data.index.layout import Root, describe, is_image, kind
from imagenet_opt.data.index.parquet import parquet_files, read_parquet
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.index.tar_index import Tars, find_tars, scan_tars, split_of_tars, tars_among
from imagenet_opt.data.index.tar_members import Read, StreamBytes
from imagenet_opt.data.storage.cache_folder import bytes_of, cache_of
from imagenet_opt.data.storage.retry import SparseWarnings, retry_transient, tell_once
from imagenet_opt.data.storage.tar_spool import TarSpool
from imagenet_opt.display.progress import size as size_text
from imagenet_opt.errors import DatasetNotFound
from imagenet_opt.object_storage import FoundObject, ObjectStorage, is_web

log = logging.getLogger(__name__)
T = TypeVar("T")

KEY = "data.root"
"""The config key of the URL, for messages."""
_PART = 2**23
"""Bytes of a request for a part of a tar."""
_PATIENCE = 60.0
"""Seconds for which a request is retried while an index is opened."""
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
            split = save(cached, _list(url, spool), {"url": url})
            if spool.folder.exists() and (cache := cache_of(split, cache_gb)) is not None:
                spool.move(split, cache)
            return split
        finally:
            spool.close()

    split, is_new = load_or_make(cache_dir, place.encode(), lambda cached: load(cached, _is_of(url)), make)
    tell_listed(split, None if is_new or split.origin is None else split.origin.about.parent)
    return split


def _is_of(url: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda about: bool(about["url"] == url)


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


def _list(url: str, spool: TarSpool) -> Split:
    storage = ObjectStorage(url, KEY, retries=False)
    place, _, split = url.rpartition("/") if "/" in url.partition("://")[2] else (url, "", "")
    root = ObjectRoot(place)
    folders, files = root.entries(split)
    tars_among(files, folders, place=url)
    if not folders:
        if tars := find_tars(root, split):
            below = tars.place.removeprefix(place).strip("/")
            return _read_tars(tars, [root.objects[os.path.join(below, name)] for name in tars.names], spool)
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
    return retry_transient(request, name, _PATIENCE, _warn)


def _images(storage: ObjectStorage, class_name: str) -> tuple[list[FoundObject], Counter[str]]:
    """The images in one class folder, in the order of their paths, and the kinds of other objects."""
    found = patiently(
        lambda: [each for portion in storage.objects(class_name) for each in portion], f"{storage.url}/{class_name}"
    )
    folders = {each for each in found if not each.size and "." not in each.path.rpartition("/")[2]}  # of consoles
    others = Counter(kind(each.path) for each in found if not is_image(each.path) and each not in folders)
    return sorted(each for each in found if is_image(each.path)), others


def _read_tars(tars: Tars, objects: Sequence[FoundObject], spool: TarSpool) -> Split:
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
    tell_once(f"reading {len(objects)} tars of {tars.place}, {size_text(total)}, once, for the places of their images")
    samples = scan_tars(tars, open_tar, patience=0.0)
    return split_of_tars(tars, samples, etags=np.array([tar.etag.encode() for tar in objects], np.bytes_))
