"""Images of compressed Parquet files: rows of a row group are decompressed together, so a pack reads them together."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.split import Rows, Split
from imagenet_opt.data.parquet.file import ParquetFile, damaged, with_file
from imagenet_opt.data.parquet.footer import read_footer
from imagenet_opt.data.parquet.pages import values
from imagenet_opt.data.parquet.rows import image_column
from imagenet_opt.data.storage.read_pool import Sample
from imagenet_opt.errors import BadSample
from imagenet_opt.regular_file import MOST_BYTES

_BLOCK = 1000
"""Most rows of a row group that stay together: some files have one row group."""
_MOST_GROWTH = 16
"""Images that grow more when they are decompressed are not packed: a hostile file could fill the memory."""


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
