"""Estimates as cells of a table and as points of a plot."""

from collections.abc import Mapping

from imagenet_opt.measure.sheet import Series
from imagenet_opt.measure.statistics import Estimate


def interval(estimate: Estimate, shape: str) -> str | None:
    """ "low-high", both in this format; None where one value alone has none."""
    return f"{shape.format(estimate.low)}-{shape.format(estimate.high)}" if estimate.coverage else None


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
