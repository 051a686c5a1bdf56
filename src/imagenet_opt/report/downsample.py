"""Downsampling that keeps the minimum and maximum of each stretch, so that no peak is lost."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def min_max(x: ArrayLike, y: ArrayLike, *, most: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """About `most` of the points, in their order: the minimum and maximum of y in each of most/2 equal stretches.

    x: ascending. A stretch without a finite y gives one nan, so that a gap in the data stays a gap in the figure.
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(xs) <= most:
        return xs, ys
    edges = np.linspace(0, len(xs), max(1, most // 2) + 1).astype(int)
    kept = np.union1d(_first_of(np.fmin, ys, edges), _first_of(np.fmax, ys, edges))
    return xs[kept], ys[kept]


def _first_of(extreme: np.ufunc, ys: NDArray[np.float64], edges: NDArray[np.int_]) -> NDArray[np.int_]:
    """Index of the first extreme of each stretch; the first index of a stretch that is all nan."""
    stretch = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    levels = extreme.reduceat(ys, edges[:-1])[stretch]
    places = np.flatnonzero((ys == levels) | np.isnan(levels))
    return places[np.unique(stretch[places], return_index=True)[1]]
