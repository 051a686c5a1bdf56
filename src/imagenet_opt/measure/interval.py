"""Estimates and ratios as cells of a table, and as points of a plot."""

from collections.abc import Mapping

from imagenet_opt.measure.blocks import Ratio
from imagenet_opt.measure.sheet import Cell, Series
from imagenet_opt.measure.statistics import Estimate, Interval, verdict


def interval(found: Interval, shape: str) -> str | None:
    """ "low-high", both in this format; None where one round alone has none."""
    return f"{shape.format(found.low)}-{shape.format(found.high)}" if found.coverage else None


def ratio_cells(ratio: Ratio | None, shape: str = "{:.2f}") -> tuple[Cell, Cell, Cell]:
    """The ratio, its interval in this format, and what that allows to say."""
    return (None, None, None) if ratio is None else (ratio.ratio, interval(ratio, shape), verdict(ratio))


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
