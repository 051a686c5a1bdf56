"""Estimates as cells of a table, as points of a plot, and what to say of those that decide nothing."""

from collections.abc import Iterable, Mapping

from imagenet_opt.measure.sheet import Cell, Series
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


def undecided(rows: Iterable[Iterable[Cell]]) -> tuple[str, ...]:
    """A note where a verdict says that there were too few rounds."""
    if not any(cell == "undecided" for row in rows for cell in row):
        return ()
    return ("Undecided: fewer than five rounds say nothing certain about a median; --repeats 5 or more do.",)
