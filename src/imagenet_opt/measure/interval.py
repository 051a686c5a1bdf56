"""Estimates and ratios as cells of a table, and as points of a plot."""

import math
from collections.abc import Iterable, Mapping

from imagenet_opt.measure.sheet import Cell, Series
from imagenet_opt.measure.stats.block_ratios import Ratio
from imagenet_opt.measure.stats.intervals import Estimate, Interval, verdict

FAR = 100.0
"""Ratios from which on an interval says nothing."""
RATIOS = (
    "Ratios and their intervals are of geometric means over the rounds, the other columns of medians: where rounds "
    "differ much, the ratio is not that of the two medians."
)
"""What stands below a table with ratio_cells."""


def interval(found: Interval, shape: str) -> str | None:
    """ "low-high", both in this format; None where one round alone has none."""
    return f"{shape.format(found.low)}-{shape.format(found.high)}" if found.coverage else None


def ratio_cells(ratio: Ratio | None, shape: str = "{:.2f}") -> tuple[Cell, Cell, Cell]:
    """The ratio, its interval in this format, and what that allows to say."""
    if ratio is None:
        return None, None, None
    known = ratio.high < FAR or not ratio.coverage
    return ratio.ratio, interval(ratio, shape) if known else f"{shape.format(ratio.low)} to far more", verdict(ratio)


def shape_of(values: Iterable[float]) -> str:
    """A format for a column of these, all positive, that shows two digits or more of the least."""
    least = min(values, default=1e9)
    return f"{{:,.{max(0, 1 - math.floor(math.log10(least)))}f}}"


def series(name: str, points: Mapping[float, Estimate] | Mapping[str, Estimate]) -> Series:
    """points: by x."""
    found = list(points.values())
    return Series(
        name,
        tuple(points),
        tuple(one.median for one in found),
        tuple(one.low for one in found),
        tuple(one.high for one in found),
    )
