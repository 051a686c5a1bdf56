"""Selects samples of a split evenly from all classes."""

import numpy as np
from numpy.typing import NDArray


def spread_over_classes(labels: NDArray[np.int32], num: int, seed: int = 0) -> NDArray[np.int64]:
    """Rows of `num` random samples (or of all), ascending, with the same number from each class, or one more.
    Classes with too few samples leave their share to the others."""
    if num >= len(labels):
        return np.arange(len(labels))
    chance = np.random.default_rng(seed).random(len(labels))
    order = np.lexsort((chance, labels))
    starts = np.searchsorted(labels[order], labels[order])
    place_in_class = np.arange(len(labels)) - starts
    chosen = order[np.lexsort((chance[order], place_in_class))[:num]]
    return np.sort(chosen)
