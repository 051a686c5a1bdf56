"""Some samples of a split, of all classes alike."""

import numpy as np
from numpy.typing import NDArray


def spread_over_classes(labels: NDArray[np.int32], num: int, seed: int = 0) -> NDArray[np.int64]:
    """Rows of `num` samples, or all there are, ascending: at random, and of each class as many, or one more.

    Classes that have too few leave their share to the others.
    """
    if num >= len(labels):
        return np.arange(len(labels))
    chance = np.random.default_rng(seed).random(len(labels))
    order = np.lexsort((chance, labels))
    starts = np.searchsorted(labels[order], labels[order])
    place_in_class = np.arange(len(labels)) - starts
    chosen = order[np.lexsort((chance[order], place_in_class))[:num]]
    return np.sort(chosen)
