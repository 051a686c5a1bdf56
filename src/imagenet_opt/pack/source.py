"""Images to pack: those that training reads, or a flat folder with a list of labels. Rows of a row group of compressed
Parquet files are decompressed together, so a pack reads them together."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.flat_folder import open_flat
from imagenet_opt.data.index.layout import has_flat_images, split_place
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.shard_index import is_packed
from imagenet_opt.data.index.split import Rows, Split
from imagenet_opt.data.parquet.file import ParquetFile, damaged, with_file
from imagenet_opt.data.parquet.footer import read_footer
from imagenet_opt.data.parquet.pages import values
from imagenet_opt.data.parquet.rows import image_column
from imagenet_opt.data.storage.read_pool import ReadPool, Sample
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.data.storage.retry import TRANSIENT, is_out, retry_transient
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.errors import BadSample, ConfigError, StorageFailed
from imagenet_opt.regular_file import MOST_BYTES

READ_TIMEOUT = 120.0
"""Default of data.read_timeout, in seconds. Reads that fail are repeated for half of this time."""
_READS_IN_FLIGHT, _THREADS = 16, 32
_BLOCK = 1000
"""Most rows of a row group that stay together: some files have one row group."""
_MOST_GROWTH = 16
"""Images that grow more when they are decompressed are not packed: a hostile file could fill the memory."""


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
    yield from chain.from_iterable(pool.read_all(np.arange(len(index))[:, None], _READS_IN_FLIGHT))


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


def in_blocks(split: Split, draw: np.random.Generator) -> Rows:
    """All samples; row groups, or parts of 1000 rows, in random order."""
    is_first = np.diff(split.container_ids, prepend=-1) != 0
    first_of_group = np.maximum.accumulate(np.where(is_first, np.arange(len(split)), 0))
    block = np.cumsum((np.arange(len(split)) - first_of_group) % _BLOCK == 0) - 1
    return np.argsort(draw.permutation(block[-1] + 1)[block], kind="stable")


def read_compressed(split: Split) -> Iterator[Sample]:
    """The images in order; all of them are in memory at first. A row without bytes is a BadSample. Raises DataError."""
    images, left = np.empty(len(split), object), MOST_BYTES + _MOST_GROWTH * int(split.sizes.sum())
    order = np.lexsort((split.offsets, split.container_ids))
    for rows in np.split(order, np.flatnonzero(np.diff(split.container_ids[order])) + 1):
        etag = split.etags[split.container_ids[rows[0]]].decode() if len(split.etags) else ""
        read = partial(_of_group, wanted=split.offsets[rows], most_bytes=left)
        images[rows] = with_file(f"{split.place}/{split.file(int(rows[0]))}", read, etag)
        left -= sum(len(image or b"") for image in images[rows])
    for i, image in enumerate(images):
        images[i] = None
        yield BadSample("the row has no bytes; the image is another file") if image is None else image


def _of_group(file: ParquetFile, *, wanted: Rows, most_bytes: int) -> NDArray[Any]:
    """The images of these rows of the file, which are in ascending order, and in one row group."""
    footer, first = read_footer(file), 0
    path = image_column(footer).path
    for group in footer.groups:
        if wanted[0] < first + (chunk := group[path]).num_rows:
            return values(file, chunk, wanted - first, most_bytes)
        first += chunk.num_rows
    raise damaged(f"it has no row {wanted[0]}")
