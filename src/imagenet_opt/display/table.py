"""A table of results, for the terminal, documents and other programs."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from imagenet_opt.measure.stats.intervals import Estimate
from imagenet_opt.measure.stats.verdict import UNDECIDED, Ratio

Cell = str | float | None
"""None: not measured."""


@dataclass(frozen=True)
class Column:
    """heading: title with its unit. shape: format for numbers, such as "{:,.0f}"."""

    heading: str
    shape: str = "{}"

    def show(self, cell: Cell) -> str:
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return "-"
        return cell if isinstance(cell, str) else self.shape.format(cell)


@dataclass(frozen=True)
class Series:
    """One curve or set of bars of a plot. low, high: interval of each value; empty without intervals. begin, texts,
    colours: where each bar begins, if not at 0, the text beside its name, and its colour."""

    name: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    begin: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    colours: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plot:
    """x, y: titles of the axes, with units. kind: a plot of "ratios" has a row for each x of the
    series, with y, the ratio, and its interval."""

    title: str
    x: str
    y: str
    kind: Literal["bars", "ratios"]
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Table:
    """rows: one cell per column. finding: the result in one sentence. notes: sentences below the table. plots: the
    results as figures. data: the underlying numbers as JSON values, for other programs. left_out: sentences about what
    was not measured.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    finding: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The finding, the notes, and what was left out."""
        return (*([self.finding] if self.finding else []), *self.notes, *self.left_out)

    def texts(self) -> list[list[str]]:
        """The formatted cells of each row."""
        return [[column.show(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]

    def markdown(self) -> str:
        """A GitHub table with its title and notes; | in cells is escaped."""
        lines = [
            "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in [self.headings, *self.texts()]
        ]
        lines.insert(1, "|---" * len(self.columns) + "|")
        sentences = self.sentences
        return "\n".join([f"### {self.title}", "", *lines, *([""] if sentences else []), *sentences, ""])


FAR = 100.0
"""An interval that reaches this ratio is shown as open."""
RATIOS = (
    "Ratios are ratios of geometric means over the rounds, the other columns are medians: where rounds differ much, "
    "the ratio differs from the ratio of the two medians."
)
"""Note below a table with ratios."""


def interval(bounds: Estimate | Ratio, shape: str) -> str | None:
    """ "low-high", both in the format `shape`; None after a single round, which gives no interval."""
    return f"{shape.format(bounds.low)}-{shape.format(bounds.high)}" if bounds.coverage else None


def ratio_interval(ratio: Ratio) -> str | None:
    """The interval of a ratio in a cell; None after a single round."""
    known = ratio.high < FAR or not ratio.coverage
    return interval(ratio, "{:.2f}") if known else f"{ratio.low:.2f} to over {FAR:g}"


def how_to_decide(table: Table) -> Table:
    """Add a note to a table with an undecided comparison of a fixed number of rounds."""
    if not any(UNDECIDED in text for row in (*table.texts(), table.sentences) for text in row):
        return table
    return replace(table, notes=(*table.notes, f"To decide what is {UNDECIDED}, raise --repeats."))


def shape_of(values: Iterable[float]) -> str:
    """A format for a column of positive values that shows at least two digits of the smallest value."""
    least = min(values, default=1e9)
    return f"{{:,.{max(0, 1 - math.floor(math.log10(least)))}f}}"


def series(name: str, points: Mapping[float, Estimate] | Mapping[str, Estimate]) -> Series:
    """A series with intervals. points: estimates by x."""
    estimates = list(points.values())
    return Series(
        name,
        tuple(points),
        tuple(estimate.median for estimate in estimates),
        tuple(estimate.low for estimate in estimates),
        tuple(estimate.high for estimate in estimates),
    )
