"""Fewer points that look the same: the least and the greatest of each stretch stay, so that no peak is lost."""

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray


def min_max(x: ArrayLike, y: ArrayLike, *, most: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """About `most` of the points, in their order: of each of most/2 equal stretches the least y and the greatest.

    x: ascending. A stretch without any finite y gives one nan, so that a gap stays a gap.
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(xs) <= most:
        return xs, ys
    edges = np.linspace(0, len(xs), max(1, most // 2) + 1).astype(int)
    kept = [place for first, end in pairwise(edges) for place in _extremes(ys, first, end)]
    return xs[kept], ys[kept]


def _extremes(ys: NDArray[np.float64], first: int, end: int) -> list[int]:
    part = ys[first:end]
    if np.isnan(part).all():
        return [first]
    return sorted({first + int(np.nanargmin(part)), first + int(np.nanargmax(part))})
