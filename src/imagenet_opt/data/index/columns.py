"""Maps and checks the columns of an index, which are .npy files.

A damaged or malicious file is refused before it is used: nothing is unpickled, and no number in a file can make the
process allocate more memory than the file has bytes, or read outside of the file.
"""

import hashlib
import os
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from imagenet_opt.regular_file import open_regular


def open_column(path: Path, dtype: DTypeLike, length: int | None = None) -> NDArray[Any]:
    """Map a file of `length` numbers; None: any number. Raises ValueError with the path."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            if npy.read_magic(file) != (1, 0):
                raise ValueError("the format has another version")
            shape, _, actual = npy.read_array_header_1_0(file)
            start, size = file.tell(), os.fstat(file.fileno()).st_size
    except (OSError, ValueError, tokenize.TokenError) as error:
        raise ValueError(f"{path} cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    expected = np.dtype(dtype)
    num = (size - start) // expected.itemsize if length is None else length
    if actual != expected or shape != (num,):
        raise ValueError(f"{path} is {actual} {shape}, not {num} numbers of {expected}")
    if size != start + num * expected.itemsize:
        raise ValueError(f"{path} has {size} bytes, not {start + num * expected.itemsize} bytes for {num} numbers")
    return np.memmap(path, expected, "r", start, shape)


def check_range(path: Path, column: NDArray[Any], most: int) -> None:
    """Raises ValueError unless all numbers are from 0 to `most`."""
    if len(column) and not 0 <= column.min() <= column.max() <= most:
        raise ValueError(f"{path} is damaged: it has numbers outside of 0 to {most}")


def check_ends(path: Path, ends: NDArray[np.int64], total: int) -> None:
    """Raises ValueError unless the numbers cut 0 to `total` into pieces, in order."""
    if ends[0] != 0 or ends[-1] != total or (ends[1:] < ends[:-1]).any():
        raise ValueError(f"{path} is damaged: it does not cut {total} bytes into names")


def fingerprint_of(url: str, *columns: NDArray[Any]) -> str:
    """Name for the cache of a data set. columns: all that identifies the samples, such as names, sizes and ETags."""
    found = hashlib.sha256(url.encode())
    for column in columns:
        found.update(f"{column.dtype} {column.shape}".encode())
        found.update(np.ascontiguousarray(column).data)
    return found.hexdigest()[:24]
