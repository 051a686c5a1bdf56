"""Packed splits below a URL: the index is kept in data.cache_dir, the shards are read by ranges."""

import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from imagenet_opt.data.index.index_cache import load, load_or_make, save
from imagenet_opt.data.index.object_index import KEY, patiently
from imagenet_opt.data.index.shard_index import (
    COLUMNS,
    INDEX,
    PLAN,
    About,
    is_of_wids,
    open_columns,
    parse_about,
    shard_name,
    split_of,
)
from imagenet_opt.data.index.split import Split
from imagenet_opt.errors import ConfigError, ShardMismatch
from imagenet_opt.object_storage import FoundObject, ObjectStorage, is_web
from imagenet_opt.regular_file import MOST_BYTES

_HEAD_THREADS = 32


def open_object_shards(url: str, cache_dir: Path | None, *, key: str = KEY) -> Split | None:
    """Open a packed split; None if the URL has none. cache_dir: None keeps nothing. key: the option that holds the URL,
    for messages. Raises ShardMismatch for an unfinished pack, a damaged column, or a missing or resized shard;
    StorageFailed, for an index.json of more than MOST_BYTES too."""
    storage = ObjectStorage(url, key, retries=False)
    try:
        content = patiently(lambda: storage.read(INDEX, most=MOST_BYTES), url)
    except FileNotFoundError:
        if patiently(partial(storage.head, PLAN), url):
            raise _mismatch(storage, f"{url} is no finished pack: it has no {INDEX}") from None
        return None
    if is_of_wids(content):
        return None
    try:
        about = parse_about(content, f"{url}/{INDEX}")
    except ValueError as error:
        raise _mismatch(storage, str(error)) from error
    etags = _etags(storage, about)
    if cache_dir is None:
        return _read(storage, about, etags)
    identity = "\n".join([url, *etags]).encode() + content  # new content has a new folder
    return load_or_make(cache_dir, identity, load, lambda cached: save(cached, _read(storage, about, etags)))[0]


def _read(storage: ObjectStorage, about: About, etags: tuple[str, ...]) -> Split:
    columns = {name: _column(storage, name, about) for name in COLUMNS}
    try:
        with TemporaryDirectory() as copy:  # the maps stay when the files go
            for name, column in columns.items():
                Path(copy, f"{name}.npy").write_bytes(column)
            tags = np.array([etag.encode() for etag in etags], np.bytes_)
            return split_of(storage.url, about, open_columns(Path(copy), about), etags=tags)
    except ValueError as error:
        raise _mismatch(storage, str(error)) from error
    except OSError as error:
        raise ConfigError(f"cannot copy the index of {storage.url} into a new folder (TMPDIR): {error}") from error


def _column(storage: ObjectStorage, name: str, about: About) -> bytes:
    try:
        column = patiently(lambda: storage.read(f"{name}.npy"), storage.url)
    except FileNotFoundError:
        raise _mismatch(storage, f"{storage.url} has no {name}.npy") from None
    if zlib.crc32(column) != about.columns.get(name):
        raise _mismatch(storage, f"{storage.url}/{name}.npy is not the file of its {INDEX}")
    return column


def _etags(storage: ObjectStorage, about: About) -> tuple[str, ...]:
    """ETags of the shards, whose sizes are checked."""
    names = [shard_name(i) for i in range(len(about.shards))]
    if is_web(storage.url):
        with ThreadPoolExecutor(_HEAD_THREADS) as threads:
            heads = threads.map(lambda name: patiently(partial(storage.head, name), storage.url), names)
            found = {each.path: each for each in heads if each is not None}
    else:
        found = patiently(lambda: {o.path: o for portion in storage.objects() for o in portion}, storage.url)
    for name, shard in zip(names, about.shards, strict=True):
        size = found.get(name, FoundObject(name, -1, "")).size
        if size != shard.bytes:
            what = f"is missing in {storage.url}" if size < 0 else f"in {storage.url} has {size} bytes"
            raise _mismatch(storage, f"{name} {what}; its {INDEX} expects {shard.bytes} bytes")
    return tuple(found[name].etag for name in names)


def _mismatch(storage: ObjectStorage, what: str) -> ShardMismatch:
    root = storage.url.rpartition("/")[0]
    again = "" if is_web(root) else ", or run the same imagenet-opt pack command again; it keeps intact shards"
    return ShardMismatch(f"{what} ({storage.key}={root}); upload all files of the packed folder again{again}")
