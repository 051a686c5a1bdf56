"""Compares a packed split, in a folder or in a bucket, with its checksums."""

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from imagenet_opt.data.index.object_shards import ObjectShardIndex, open_object_shards
from imagenet_opt.data.index.shard_index import (
    About,
    ShardIndex,
    damaged_columns,
    is_packed,
    load_index,
    mismatch,
    read_about,
)
from imagenet_opt.errors import ConfigError
from imagenet_opt.object_storage import ObjectFile, ObjectStorage
from imagenet_opt.pack.target import KEY
from imagenet_opt.regular_file import open_regular

_CHUNK = 2**20
_REQUEST = 2**23
"""Bytes of a request to a bucket."""


@dataclass(frozen=True)
class PackedSplit:
    index: ShardIndex
    about: About

    def open_shard(self, shard: int) -> BufferedReader:
        index, name = self.index, self.index.shards[shard]
        if not isinstance(index, ObjectShardIndex):
            return open(index.folder / name, "rb", opener=open_regular)
        storage = ObjectStorage(index.url, KEY)
        file = ObjectFile(storage, name, self.about.shards[shard].bytes, index.shard_etags[shard])
        return BufferedReader(file, _REQUEST)


def open_packed(place: Path | str) -> PackedSplit:
    """Open the packed split in a folder or at a URL.

    Raises ConfigError if nothing was packed there; ShardMismatch for a pack without an index to compare with or with a
    damaged one, and, at a URL, for shards that are missing or have another size; StorageFailed.
    """
    if isinstance(place, str):
        with TemporaryDirectory() as copy, ObjectStorage(place, KEY).explained():  # the maps stay when the files go
            index = open_object_shards(place, Path(copy), key=KEY)
            if index is None:
                raise _no_pack(place)
            return PackedSplit(index, read_about(index.folder))
    if not is_packed(place):
        raise _no_pack(place)
    packed = PackedSplit(load_index(place), read_about(place))
    if damaged := damaged_columns(place, packed.about):
        raise mismatch(place, f"{damaged[0]} is damaged: it does not match its checksum")
    return packed


def verify(split: PackedSplit, workers: int, on_progress: Callable[[int], None] = lambda done: None) -> list[str]:
    """A line for each damaged shard or sample; empty if all are intact. workers: shards that are read at a
    time. on_progress: called after each shard with the number of samples that were read. Raises StorageFailed."""
    index, lines = split.index, list[str]()
    ends = np.searchsorted(index.shard_ids, np.arange(len(index.shards)), side="right").tolist()
    ranges = [range(first, end) for first, end in zip([0, *ends], ends, strict=False)]
    threads = ThreadPoolExecutor(workers)  # reading and zlib.crc32 let other threads run
    try:
        checks = threads.map(partial(_check_shard, split), range(len(ranges)), ranges)
        for samples, damage in zip(ranges, checks, strict=True):
            lines += damage
            on_progress(samples.stop)
    finally:
        threads.shutdown(cancel_futures=True)
    return lines


def _check_shard(split: PackedSplit, number: int, samples: range) -> list[str]:
    """Check a shard in one pass over the file. Returns a line for each damaged sample, or for the damaged shard."""
    index, shard = split.index, split.about.shards[number]
    path, lines, checksum = f"{index.place}/{index.shards[number]}", [], 0
    try:
        with split.open_shard(number) as file:
            for i in samples:
                while gap := file.read(min(_CHUNK, int(index.offsets[i]) - file.tell())):
                    checksum = zlib.crc32(gap, checksum)
                encoded = file.read(int(index.sizes[i]))
                checksum = zlib.crc32(encoded, checksum)
                if len(encoded) < index.sizes[i]:
                    lines.append(f"{index.path(i)}: truncated, {len(encoded)} of {index.sizes[i]} bytes")
                elif zlib.crc32(encoded) != index.checksums[i]:
                    lines.append(f"{index.path(i)}: the bytes do not match the checksum")
            while rest := file.read(_CHUNK):
                checksum = zlib.crc32(rest, checksum)
            if (num_bytes := file.tell()) != shard.bytes:
                lines.append(f"{path}: {num_bytes} bytes, not {shard.bytes}")
            elif checksum != shard.crc32 and not lines:
                lines.append(f"{path}: the images are intact, but a label, a name or padding is damaged")
    except OSError as error:
        lines.append(f"{path}: {error.strerror}; this shard holds {len(samples)} images")
    return lines


def _no_pack(place: Path | str) -> ConfigError:
    return ConfigError(f"no pack in {place} ({KEY}); expected the {KEY}=FOLDER that imagenet-opt pack was given")
