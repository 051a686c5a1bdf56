"""Compares a packed split with its checksums."""

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from imagenet_opt.data.index.shard_index import COLUMNS, AboutShard, ShardIndex, load_index, read_about

_CHUNK = 2**20


def verify(folder: Path, workers: int, on_progress: Callable[[int], None] = lambda done: None) -> list[str]:
    """A line for each damaged column, shard or sample of a packed split; empty if all are intact.

    on_progress: called after each shard with the number of samples that were read.

    Raises ShardMismatch where there is no index to compare with.
    """
    index, about = load_index(folder), read_about(folder)
    columns = {name: zlib.crc32((folder / f"{name}.npy").read_bytes()) for name in COLUMNS}
    if lines := [f"{folder / name}.npy is damaged" for name in COLUMNS if columns[name] != about.columns.get(name)]:
        return lines
    ends = np.searchsorted(index.shard_ids, np.arange(len(index.shards)), side="right").tolist()
    ranges = [range(first, end) for first, end in zip([0, *ends], ends, strict=False)]
    threads = ThreadPoolExecutor(workers)  # both reading and zlib.crc32 let other threads run
    try:
        checks = threads.map(partial(_check_shard, index), ranges, index.shards, about.shards)
        for samples, damage in zip(ranges, checks, strict=True):
            lines += damage
            on_progress(samples.stop)
    finally:
        threads.shutdown(cancel_futures=True)
    return lines


def _check_shard(index: ShardIndex, samples: range, name: str, shard: AboutShard) -> list[str]:
    """Check a shard in one pass over the file. Returns a line for each damaged sample, or for the damaged shard."""
    path, lines, checksum = index.folder / name, [], 0
    try:
        with open(path, "rb") as file:
            for i in samples:
                checksum = zlib.crc32(file.read(int(index.offsets[i]) - file.tell()), checksum)
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
