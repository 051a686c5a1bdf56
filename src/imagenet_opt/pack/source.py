"""Images to pack: those that training reads, or a flat folder with a list of labels."""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.flat_folder import open_flat
from imagenet_opt.data.index.layout import has_flat_images, split_place
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.shard_index import is_packed
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.storage.read_pool import ReadPool, ReadTask, Sample
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.data.storage.retry import TRANSIENT, is_out, retry_transient
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.errors import (
    ConfigError,
    StorageFailed,
)
from imagenet_opt.pack.compressed import read_compressed
from imagenet_opt.regular_file import MOST_BYTES

READ_TIMEOUT = 120.0
"""Default of data.read_timeout, in seconds. Reads that fail are repeated for half of this time."""
_READS_IN_FLIGHT, _THREADS = 16, 32


def open_train(root: Path | str, split: str, cache_dir: Path) -> Split:
    """Open `root`/`split` as for training. Raises DataError; ConfigError for a pack."""
    found = open_index(root, split, cache_dir, to_pack=True)
    if len(found.checksums):
        raise ConfigError(f"{found.place} is packed already; set data.root to the folder with the original images")
    return found


def open_val(root: Path | str, split: str, labels: Path | None, cache_dir: Path) -> Split:
    """Open val as `open_train` does. labels: a list of the classes of images in a flat folder, see `open_flat`."""
    if labels is None:
        return open_train(root, split, cache_dir)
    if isinstance(root, str) or is_packed(folder := split_place(root, split)) or not has_flat_images(folder):
        raise ConfigError(
            f"val_labels={labels} is for images directly in a folder, but {root}/{split} is a URL, or has subfolders "
            "or archives: leave val_labels out"
        )
    return open_flat(folder, labels)


def read_images(index: Split, read_timeout: float) -> Iterator[Sample]:
    """The images in order; several are read at a time. One that cannot be read is a BadSample.

    Raises StorageFailed, ReadTimeout if the storage fails.
    """
    if index.codec:
        yield from read_compressed(index)
        return
    pool = ReadPool(RecordStore(index), timeout_seconds=read_timeout, max_bytes=2 * MOST_BYTES)
    running: deque[ReadTask] = deque()

    def finish() -> Sample:
        ((sample,),) = pool.answer(running.popleft())
        return sample

    for row in np.arange(len(index))[:, None]:
        running.append(pool.start([np.array([0])], [row], _READS_IN_FLIGHT, stop_when_slow=False))
        if len(running) > _READS_IN_FLIGHT:
            yield finish()
    while running:
        yield finish()


def name_of(index: Split, i: int) -> str:
    """Name of image i as class/file."""
    name, folder = index.name(i), index.classes[index.labels[i]]
    return name if name.startswith(f"{folder}/") else f"{folder}/{name}"


def sizes_of(index: Split, rows: Indices, read_timeout: float) -> NDArray[np.int64]:
    """Bytes of these images; -1 for a file whose size cannot be read. Raises StorageFailed."""
    if len(index.sizes):
        return index.sizes[rows]

    def size(i: int) -> int:
        path = index.path(i)
        try:
            return retry_transient(lambda: os.stat(path), path, read_timeout / 2).st_size
        except OSError as error:
            if error.errno not in TRANSIENT or not is_out(i, len(index), lambda other: os.stat(index.path(other))):
                return -1
            raise StorageFailed(
                f"{path}: {error.strerror}; check that ls works on the mount (data.root), then run the same command "
                "again"
            ) from error

    with ThreadPoolExecutor(_THREADS) as threads:
        return np.fromiter(threads.map(size, rows.tolist()), np.int64)
