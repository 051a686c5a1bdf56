"""The view of a run for a terminal: its state, its newest numbers and four small charts."""

from typing import NamedTuple

import plotext
from rich.console import Group
from rich.table import Table
from rich.text import Text

from imagenet_opt.display.printable import printable
from imagenet_opt.report.downsample import min_max
from imagenet_opt.watch.numbers import facts, series
from imagenet_opt.watch.run_folder import Snapshot

FACTS_IN_A_LINE = 3
_MOST_POINTS = 400
_LEAST_HEIGHT, _MOST_HEIGHT = 7, 14


class Line(NamedTuple):
    """A line of a chart. points: whether its few values are drawn as crosses instead of a line."""

    column: str
    colour: str
    factor: float = 1
    points: bool = False


CHARTS = {
    "loss (x: validation)": (Line("train/loss", "blue"), Line("val/loss", "orange", points=True)),
    "top-1, % (x: validation)": (Line("train/acc1", "blue", 100), Line("val/acc1", "orange", 100, points=True)),
    "images/s": (Line("throughput/images_per_second", "default"),),
    "% data wait (red), GPU (green)": (
        Line("throughput/data_wait_fraction", "red", 100),
        Line("gpu/utilization_percent", "green"),
        Line("rehearsal/accelerator_utilization", "green", 100),
    ),
}
"""Title -> lines."""


def view(snapshot: Snapshot, *, width: int, height: int) -> Group:
    """A view of at most `width` columns and, from 24 on, `height` lines. width: at least 80."""
    numbers = _numbers(snapshot)
    room = (height - 3 - numbers.row_count) // 2
    state = snapshot.ending or "The run trains. q ends the view, not the run."
    head = Text(f"{printable(snapshot.name)}: ", style="bold").append(printable(state), style="not bold")
    parts: list[Text | Table] = [head, numbers]
    if len(snapshot.rows) > 1:
        parts.append(_charts(snapshot, (width - 1) // 2, min(max(room, _LEAST_HEIGHT), _MOST_HEIGHT)))
    return Group(*parts)


def _numbers(snapshot: Snapshot) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    cells = [cell for label, text in facts(snapshot) for cell in (Text(label, style="dim"), Text(printable(text)))]
    per_line = 2 * FACTS_IN_A_LINE
    for begin in range(0, len(cells), per_line):
        table.add_row(*cells[begin : begin + per_line])
    return table


def _charts(snapshot: Snapshot, width: int, height: int) -> Table:
    drawn = [_chart(snapshot, title, lines, width, height) for title, lines in CHARTS.items()]
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.add_row(*drawn[:2])
    table.add_row(*drawn[2:])
    return table


def _chart(snapshot: Snapshot, title: str, lines: tuple[Line, ...], width: int, height: int) -> Text:
    """One chart over the steps."""
    plotext.clear_figure()
    plotext.plotsize(width, height)
    plotext.theme("clear")
    plotext.title(title)
    plotext.yfrequency(3)
    plotext.xfrequency(3)
    if not any([_draw(snapshot, line) for line in lines]):
        return Text(f"{title}\nno value yet", style="dim")
    return Text.from_ansi(plotext.build().rstrip("\n"), no_wrap=True)


def _draw(snapshot: Snapshot, line: Line) -> bool:
    """Add a line to plotext's figure, and say whether the line has values."""
    steps, values = series(snapshot.rows, line.column)
    if not steps:
        return False
    xs, ys = min_max(steps, [line.factor * value for value in values], most=_MOST_POINTS)
    look = {"marker": "x" if line.points else "braille", "color": line.colour}
    (plotext.scatter if line.points else plotext.plot)(xs.tolist(), ys.tolist(), **look)
    return True
