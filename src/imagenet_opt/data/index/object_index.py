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
from imagenet_opt.data.index.layout import describe, is_image, kind
from imagenet_opt.data.index.parquet import ParquetFiles, listed, names_of_split, read_parquet
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.index.tar_index import MOST_BESIDE, Tars, is_about_tars, scan_tars, split_of_tars, tars_among
from imagenet_opt.data.index.tar_members import Read, StreamBytes
from imagenet_opt.data.index.webdataset import is_named, words_of
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


def _list(url: str, spool: TarSpool) -> Split:
    storage = ObjectStorage(url, KEY, retries=False)
    folders, files = patiently(storage.entries, url)
    tars_among([each.path for each in files], folders, place=url)
    if not folders:
        if tars := _find_tars(url, files):
            return _read_tars(*tars, spool)
        if parquet := _find_parquet(url):
            return read_parquet(parquet)
        names = [each.path for each in files]
        raise DatasetNotFound(
            f"no class folders below {url} ({KEY}, data.train_folder, data.val_folder); expected <class>/*.JPEG. "
            f"{describe(names, url, url.rpartition('/')[0])}"
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


def _root_and_split(url: str) -> tuple[str, str]:
    root, _, split = url.rpartition("/") if "/" in url.partition("://")[2] else (url, "", "")
    return root, split


def _find_parquet(url: str) -> ParquetFiles | None:
    """The Parquet files of a split, where `parquet_files` would find them in folders."""
    (root, split), found = _root_and_split(url), dict[str, FoundObject]()

    def names_in(below: str) -> list[str]:
        folders, objects = _entries(f"{root}/{below}".rstrip("/"))
        found.update({os.path.join(below, each.path): each for each in objects})
        return [*folders, *(each.path for each in objects)]

    names = names_of_split(listed(names_in, split), split)
    return ParquetFiles(root, split, names, tuple(found[name].etag for name in names)) if names else None


def _find_tars(url: str, files: Sequence[FoundObject]) -> tuple[Tars, list[FoundObject]] | None:
    """The tars of a split and their objects, where `find_tars` would find them in folders. files: those of `url`."""
    root, split = _root_and_split(url)
    above = _entries(root)[1] if root != url else list(files)
    for name in (split, *sorted(words_of(split) - {split})):
        place = f"{root}/{name}" if name != split else url
        folders, below = _entries(place) if name != split else ([], list(files))
        names = tars_among([each.path for each in below], folders, place=place)
        if found := [each for each in below if each.path in names]:
            return _tars(place, split, found, below, above), found
    names = tars_among(each.path for each in above)
    found = [each for each in above if each.path in names and is_named(each.path, split)]
    return (_tars(root, split, found, above, above), found) if found else None


def _entries(url: str) -> tuple[list[str], list[FoundObject]]:
    return patiently(ObjectStorage(url, KEY, retries=False).entries, url)


def _tars(
    place: str, split: str, tars: Sequence[FoundObject], files: Sequence[FoundObject], above: Sequence[FoundObject]
) -> Tars:
    """The tars with the files that may tell about them: `files` beside them, and `above` in the root."""
    beside = dict[str, bytes]()
    for url, found in ((place, files), (place.rpartition("/")[0], above)):
        storage = ObjectStorage(url, KEY, retries=False)
        for each in found:
            if each.path not in beside and is_about_tars(each.path, of_split=url == place):
                beside[each.path] = patiently(partial(storage.read, each.path, most=MOST_BESIDE), url)
    return Tars(place, split, tuple(each.path for each in tars), beside)


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
