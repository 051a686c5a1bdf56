"""Whether two ways to train give the same loss, as far as another seed would."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np


@dataclass(frozen=True)
class Parity:
    """distance: root mean square of the differences of two loss curves. spread: the largest one between two seeds."""

    distance: float
    spread: float

    @property
    def agrees(self) -> bool:
        return self.distance <= self.spread

    def __str__(self) -> str:
        if math.isnan(self.distance):
            return "the loss is not finite"
        return f"{'same' if self.agrees else 'DIFFERS'}: {self.distance:.3f}, seeds {self.spread:.3f}"


def parity(curve: Sequence[float], base: Sequence[float], seeds: Sequence[Sequence[float]]) -> Parity:
    """A loss curve against `base`, which saw the same batches; all of the same length. seeds: of one way to train, each
    with another seed.

    Raises ValueError for fewer than two seeds: they tell what difference means nothing.
    """
    if len(seeds) < 2:
        raise ValueError(f"{len(seeds)} seeds have no spread")
    return Parity(distance(curve, base), max(distance(a, b) for a, b in combinations(seeds, 2)))


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """nan where either is not finite."""
    found = math.sqrt(float(np.mean((np.array(a) - np.array(b)) ** 2)))
    return found if math.isfinite(found) else math.nan
