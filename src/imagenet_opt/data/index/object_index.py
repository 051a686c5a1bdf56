"""Index of the images below a URL, a folder per class: listed once, then kept in data.cache_dir."""

import copyreg
import json
import logging
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.folder_index import (
    FileIndex,
    check_not_empty,
    now,
    open_file_columns,
    others_of,
    tell_listed,
)
from imagenet_opt.data.index.index_cache import ABOUT, fingerprint_of, load_or_make, open_column, save_columns
from imagenet_opt.data.index.layout import describe, is_image, kind
from imagenet_opt.data.storage.retry import SparseWarnings, retry_transient
from imagenet_opt.errors import DataError, DatasetNotFound
from imagenet_opt.object_storage import FoundObject, ObjectStorage, is_web
from imagenet_opt.regular_file import read_file

log = logging.getLogger(__name__)
T = TypeVar("T")

KEY = "data.root"
"""The config key of the URL, for messages."""
_FORMAT = 2
_LIST_THREADS = 32
_PATIENCE = 60.0
"""Seconds for which a request is retried while an index is opened."""
_warn = SparseWarnings(log)
_COLUMNS = ("labels", "names", "name_offsets", "sizes", "etags")


class Part(NamedTuple):
    """Some samples of an index. rows: int64 (num_samples,), their places in `whole`."""

    whole: "RemoteIndex"
    rows: NDArray[np.int64]


class RemoteIndex:
    """Base of the dataclasses of such indexes. url: of the split. folder: of the columns, in data.cache_dir. sizes:
    int64 (num_samples,), bytes of each sample. is_whole: False for some samples of an index, and for an index that is
    not in data.cache_dir; then pickle copies the columns, which another process maps otherwise. part: of which index
    these samples are a part."""

    url: str
    folder: Path
    sizes: NDArray[np.int64]
    is_whole: bool
    part: Part | None

    @property
    def place(self) -> str:
        return self.url

    @property
    def cache_dir(self) -> Path:
        """data.cache_dir."""
        return self.folder.parents[1]

    @property
    def fingerprint(self) -> str:
        """Name of the local cache of the samples; changes with their content."""
        raise NotImplementedError


@dataclass(frozen=True)
class ObjectIndex(RemoteIndex, FileIndex):
    """Images below `url`; the names are relative to it. Further fields: see RemoteIndex.

    etags: bytes (num_samples,), the ETag of each object in the listing; empty if unknown. listed: time of the listing.
    """

    url: str
    sizes: NDArray[np.int64]
    etags: NDArray[np.bytes_]
    listed: str
    is_whole: bool = True
    part: Part | None = None

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.url, self.names, self.name_offsets, self.sizes, self.etags)

    def relative(self, i: int) -> str:
        """Path of sample i below `url`."""
        return self.names[self.name_offsets[i] : self.name_offsets[i + 1]].tobytes().decode()

    def path(self, i: int) -> str:
        """URL of sample i."""
        return f"{self.url}/{self.relative(i)}"

    def __reduce__(self) -> Any:
        if self.is_whole and _listed(self.folder) == self.listed:  # else the files were removed or renewed
            return _reopen, (self.folder, self.url, self.listed)
        return copyreg.__newobj__, (type(self),), self.__dict__  # type: ignore[attr-defined]


def open_objects(url: str, cache_dir: Path) -> ObjectIndex:
    """Index of the images below `url`, in the order that a folder with the same files has; from the cache if the
    images were listed earlier, since each read checks that its object is still the listed object.

    If several processes have one cache folder, one process lists the objects and the others wait. Raises
    DatasetNotFound, EmptyClass, StorageFailed.
    """
    if is_web(url):
        raise DatasetNotFound(
            f"{url} has no index.json, and a web server does not list its files ({KEY}); pack the data set first: "
            "imagenet-opt pack data.root=FOLDER out=PACKED, and upload PACKED"
        )
    place = f"{os.environ.get('AWS_ENDPOINT_URL', '')} {url}"  # another service may have the same names

    def make(cached: Path) -> ObjectIndex:
        index = _list(cached, url)
        columns = {name: getattr(index, name) for name in _COLUMNS}
        about = {"format": _FORMAT, "url": url, "classes": index.classes, "listed": index.listed}
        about |= {"others": index.others, "etag_bytes": index.etags.itemsize}
        save_columns(cached, columns, about, url)
        return _load(cached, url) or replace(index, is_whole=False)

    index, is_new = load_or_make(cache_dir, place.encode(), lambda cached: _load(cached, url), make)
    tell_listed(index, index.listed, None if is_new else index.folder)
    return index


def _list(folder: Path, url: str) -> ObjectIndex:
    storage, listed = ObjectStorage(url, KEY, retries=False), now()
    classes = tuple(patiently(storage.folders, url))
    if not classes:
        files = [each.path for each in patiently(lambda: next(storage.objects(), []), url)]
        raise DatasetNotFound(
            f"no class folders below {url} ({KEY}, data.train_folder, data.val_folder); expected <class>/*.JPEG. "
            f"{describe(files, url, url.rpartition('/')[0])}"
        )
    log.info(f"listing {url}")
    with ThreadPoolExecutor(_LIST_THREADS) as threads:
        found = list(threads.map(lambda name: patiently(lambda: _images(storage, name), f"{url}/{name}"), classes))
    for name, (images, others) in zip(classes, found, strict=True):
        check_not_empty(f"{url}/{name}", images, others)
    encoded = [image.path.encode() for images, _ in found for image in images]
    return ObjectIndex(
        folder,
        classes,
        np.repeat(np.arange(len(classes), dtype=np.int32), [len(images) for images, _ in found]),
        np.frombuffer(b"".join(encoded), dtype=np.uint8),
        np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        url,
        np.array([image.size for images, _ in found for image in images], np.int64),
        np.array([image.etag.encode() for images, _ in found for image in images]),
        listed,
        others=sum((others for _, others in found), Counter[str]()),
    )


def patiently(request: Callable[[], T], name: str) -> T:
    """Result of a request while an index is opened; temporary errors are retried."""
    return retry_transient(request, name, _PATIENCE, _warn)


def _images(storage: ObjectStorage, class_name: str) -> tuple[list[FoundObject], Counter[str]]:
    """The images in one class folder, in the order of their paths, and the kinds of other objects."""
    found = [each for portion in storage.objects(class_name) for each in portion]
    folders = {each for each in found if not each.size and "." not in each.path.rpartition("/")[2]}  # of consoles
    others = Counter(kind(each.path) for each in found if not is_image(each.path) and each not in folders)
    return sorted(each for each in found if is_image(each.path)), others


def _listed(cached: Path) -> str | None:
    """When the objects of a cached index were listed; None without an index."""
    try:
        return str(json.loads(read_file(cached / ABOUT))["listed"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _load(cached: Path, url: str) -> ObjectIndex | None:
    """Load the cached index; None unless it is complete."""
    try:
        about = json.loads(read_file(cached / ABOUT))
        if (about["format"], about["url"]) != (_FORMAT, url):
            return None
        classes = tuple(map(str, about["classes"]))
        columns: dict[str, Any] = open_file_columns(cached, len(classes))
        num, width = len(columns["labels"]), int(about["etag_bytes"])
        for name, dtype in (("sizes", np.int64), ("etags", f"S{width}")):
            columns[name] = np.asarray(open_column(cached / f"{name}.npy", dtype, num))
        return ObjectIndex(cached, classes, url=url, listed=str(about["listed"]), others=others_of(about), **columns)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _reopen(folder: Path, url: str, listed: str) -> ObjectIndex:
    """The same index in another process. Raises DataError if its files were removed or renewed meanwhile."""
    index = _load(folder, url)
    if index is None or index.listed != listed:
        raise DataError(f"the index of {url} in {folder} was removed or replaced; run the same command again to resume")
    return index
