"""Columns of an index: .npy files that are mapped, not read, and not believed.

A file that was damaged, or made to do harm, is told of before it is used: nothing is unpickled, and no number of a file
makes more memory be taken, or another place be read, than the file itself has.
"""

import os
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray


def open_column(path: Path, dtype: DTypeLike, length: int | None = None) -> NDArray[Any]:
    """Map a file of `length` numbers, or of as many as there are. Raises ValueError that names it."""
    try:
        with open(path, "rb") as file:
            if npy.read_magic(file) != (1, 0):
                raise ValueError("it is of another version of the format")
            shape, _, actual = npy.read_array_header_1_0(file)
            start, size = file.tell(), os.fstat(file.fileno()).st_size
    except (OSError, ValueError, tokenize.TokenError) as error:
        raise ValueError(f"{path} cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    expected = np.dtype(dtype)
    wanted = ((size - start) // expected.itemsize,) if length is None else (length,)
    if actual != expected or shape != wanted:
        raise ValueError(f"{path} is {actual} {shape}, not {wanted[0]} numbers of {expected}")
    if size != start + wanted[0] * expected.itemsize:
        raise ValueError(f"{path} has {size} bytes, not those of {wanted[0]} numbers")
    return np.memmap(path, expected, "r", start, wanted)


def check_range(path: Path, column: NDArray[Any], most: int) -> None:
    """Raises ValueError unless all numbers are from 0 to `most`."""
    if len(column) and not 0 <= column.min() <= column.max() <= most:
        raise ValueError(f"{path} is damaged: it has numbers outside of 0 to {most}")


def check_ends(path: Path, ends: NDArray[np.int64], total: int) -> None:
    """Raises ValueError unless the numbers cut 0 to `total` into pieces, in order."""
    if ends[0] != 0 or ends[-1] != total or (ends[1:] < ends[:-1]).any():
        raise ValueError(f"{path} is damaged: it does not cut {total} bytes into names")
