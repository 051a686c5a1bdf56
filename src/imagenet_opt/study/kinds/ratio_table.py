"""Cells and curves of the tables that compare settings over rounds."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.display.table import Cell, Series, interval, series
from imagenet_opt.measure.stats.intervals import median_interval

T = TypeVar("T")
X = TypeVar("X", float, str)


def complete_values(rounds: Rounds[T], value: Callable[[T], float]) -> dict[str, list[float]]:
    """The value of each round, by name; names that failed in a round are left out."""
    return {name: list(map(value, results)) for name, results in rounds.results.items() if name not in rounds.failures}


def median_cells(values: Sequence[float], shape: str) -> tuple[Cell, Cell]:
    """The median and its interval in the format `shape`; None and None without values."""
    if not values:
        return None, None
    estimate = median_interval(values)
    return estimate.median, interval(estimate, shape)


def median_series(name: str, values: Mapping[X, Sequence[float]]) -> Series:
    """A series of medians with their intervals. values: of each round, by x."""
    return series(name, {x: median_interval(rounds) for x, rounds in values.items()})
