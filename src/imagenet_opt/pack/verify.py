"""Compares the shards of a packed split, in a folder or in a bucket, with their checksums."""

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from imagenet_opt.data.index.object_shards import open_object_shards
from imagenet_opt.data.index.shard_index import INDEX, AboutShard, is_packed, open_whole, parse_about
from imagenet_opt.data.index.split import Split
from imagenet_opt.errors import ConfigError
from imagenet_opt.object_storage import ObjectStorage
from imagenet_opt.pack.target import KEY
from imagenet_opt.regular_file import open_regular

_CHUNK = 2**23
"""Bytes that are read together, from a bucket with one request."""


@dataclass(frozen=True)
class PackedSplit:
    """A packed split, and size and checksum of its shards."""

    index: Split
    shards: list[AboutShard]


def open_packed(place: Path | str) -> PackedSplit:
    """Open the packed split in a folder or at a URL.

    Raises ConfigError if nothing was packed there; ShardMismatch for a pack without an index to compare with or with a
    damaged one, and, at a URL, for shards that are missing or have another size; StorageFailed.
    """
    if isinstance(place, str):
        storage = ObjectStorage(place, KEY)
        with storage.explained():
            if (remote := open_object_shards(place, None, key=KEY)) is not None:
                return PackedSplit(remote, parse_about(storage.read(INDEX), f"{place}/{INDEX}").shards)
    elif is_packed(place):
        index, about = open_whole(place)
        return PackedSplit(index, about.shards)
    raise ConfigError(f"no pack in {place} ({KEY}); expected the {KEY}=FOLDER that imagenet-opt pack was given")


def verify(
    split: PackedSplit, workers: int, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> list[str]:
    """A line for each damaged shard; empty if all are intact. workers: shards that are read at a time. on_progress:
    called after each shard with (samples that were read, all samples). Raises StorageFailed."""
    index, lines = split.index, list[str]()
    ends = np.searchsorted(index.container_ids, np.arange(len(index.containers)), side="right").tolist()
    threads = ThreadPoolExecutor(workers)  # reading and zlib.crc32 let other threads run
    try:
        for end, damage in zip(ends, threads.map(partial(_damage, split), range(len(ends))), strict=True):
            if damage:
                lines.append(damage)
            on_progress(end, len(index))
    finally:
        threads.shutdown(cancel_futures=True)
    return lines


def _damage(split: PackedSplit, number: int) -> str:
    """The line for a damaged shard; empty for an intact one."""
    shard, place = split.shards[number], f"{split.index.place}/{split.index.containers[number]}"
    num_bytes = checksum = 0
    try:
        for chunk in _chunks(split, number):
            num_bytes += len(chunk)
            checksum = zlib.crc32(chunk, checksum)
    except OSError as error:
        return f"{place}: {error.strerror}"
    if num_bytes != shard.bytes:
        return f"{place}: {num_bytes} bytes, not {shard.bytes}"
    return "" if checksum == shard.crc32 else f"{place}: the bytes do not match the checksum"


def _chunks(split: PackedSplit, number: int) -> Iterator[bytes]:
    index, name, end = split.index, split.index.containers[number], split.shards[number].bytes
    if not index.is_remote:
        with open(index.folder / name, "rb", opener=open_regular) as file:
            while chunk := file.read(_CHUNK):
                yield chunk
        return
    storage = ObjectStorage(index.place, KEY)
    for start in range(0, end, _CHUNK):
        size = min(_CHUNK, end - start)
        with storage.explained():
            chunk = storage.read(name, start=start, size=size, etag=index.etags[number].decode())
        yield chunk
