"""Index of the images below a URL, a folder per class: listed once, then kept in data.cache_dir."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from imagenet_opt.data.index.folder_index import check_not_empty, tell_listed
from imagenet_opt.data.index.index_cache import listed, load, load_or_make, save
from imagenet_opt.data.index.layout import describe, is_image, kind
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.storage.retry import SparseWarnings, retry_transient
from imagenet_opt.errors import DatasetNotFound
from imagenet_opt.object_storage import FoundObject, ObjectStorage, is_web

log = logging.getLogger(__name__)
T = TypeVar("T")

KEY = "data.root"
"""The config key of the URL, for messages."""
_LIST_THREADS = 32
_PATIENCE = 60.0
"""Seconds for which a request is retried while an index is opened."""
_warn = SparseWarnings(log)


def open_objects(url: str, cache_dir: Path) -> Split:
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

    def make(cached: Path) -> Split:
        return save(cached, _list(url), {})

    split, is_new = load_or_make(cache_dir, place.encode(), lambda cached: load(cached, _is_of(url)), make)
    if is_new or split.origin is None:
        tell_listed(split)
    else:
        tell_listed(split, listed(split.origin.about.parent), split.origin.about.parent)
    return split


def _is_of(url: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda about: about["place"] == url


def _list(url: str) -> Split:
    storage = ObjectStorage(url, KEY, retries=False)
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
    return Split(
        place=url,
        classes=classes,
        labels=np.repeat(np.arange(len(classes), dtype=np.int32), [len(images) for images, _ in found]),
        **joined(encoded),
        sizes=np.array([image.size for images, _ in found for image in images], np.int64),
        etags=np.array([image.etag.encode() for images, _ in found for image in images], np.bytes_),
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
