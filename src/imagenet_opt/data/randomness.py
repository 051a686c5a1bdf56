"""Random numbers as a pure function of their place in the run, for whole batches at once.

Each number is a hash of (seed, *place, index), so any number of workers and any restart point draw the same numbers;
the state of a generator would depend on all earlier draws. The hash is the finaliser of SplitMix64
(Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
"""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        z = z + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def key_of(seed: int, *place: int) -> int:
    """64-bit key of a place in the run, such as (seed, epoch) or (seed, epoch, step, rank)."""
    key = np.zeros(1, dtype=np.uint64)
    for number in (seed, *place):
        key = _mix(key ^ np.uint64(number & 0xFFFFFFFFFFFFFFFF))
    return int(key[0])


def uniform(key: int, indices: NDArray[np.int64], num_draws: int) -> NDArray[np.float64]:
    """Draw `num_draws` numbers in [0, 1) for each index: float64 (len(indices), num_draws)."""
    per_index = _mix(np.uint64(key) ^ _mix(np.asarray(indices).astype(np.uint64)))
    draws = np.arange(num_draws, dtype=np.uint64)
    with np.errstate(over="ignore"):
        bits = _mix(per_index[:, None] + draws[None, :] * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample_uniform(
    seed: int, pass_ids: NDArray[np.int64], indices: NDArray[np.int64], num_draws: int, *, stream: int | None = None
) -> NDArray[np.float64]:
    """Draw `num_draws` numbers in [0, 1) for each sample of a batch: float64 (len(indices), num_draws).

    Each is a function of (seed, pass, index). stream: separates the draws for different purposes; None for crops and
    flips.
    """
    draws = np.empty((len(indices), num_draws))
    for one_pass in np.unique(pass_ids):
        chosen = pass_ids == one_pass
        place = (int(one_pass),) if stream is None else (int(one_pass), stream)
        draws[chosen] = uniform(key_of(seed, *place), indices[chosen], num_draws)
    return draws
