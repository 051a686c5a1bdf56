"""HTML pages that need no network, and their figures. Each page opens with its finding in words and a chart."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from imagenet_opt.display.table import FAR, Plot, Series, Table
from imagenet_opt.display.theme import COLOURS, LINES, escaped, layout, name_rows
from imagenet_opt.measure.stats.verdict import MARGIN, UNDECIDED, Ratio, verdict

FOLDER = Path(__file__).parent


def render_page(template: Path, *, title: str, finding: str, plotly: bool, **values: Any) -> str:
    """Render a template that extends base.html. Texts are escaped here; figures escape their own texts.

    title: what was measured. finding: one or two sentences, without commands. plotly: whether to include plotly's
    JavaScript, which figures need.
    """
    pages = Environment(
        loader=FileSystemLoader([template.parent, FOLDER]), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    program = Markup(get_plotlyjs()) if plotly else ""
    return pages.get_template(template.name).render(title=title, finding=finding, plotly=program, **values)


def page_of_tables(
    title: str,
    finding: str,
    tables: Sequence[Table],
    *,
    about: Mapping[str, str],
    command: str,
    lines: Sequence[str] = (),
    commands: Sequence[str] = (),
) -> str:
    """A page with the findings of the tables, or `finding` without any, and the first plot of the tables at its top.

    about: facts of the measurement by name. command: the command that measured. lines, commands: sentences below the
    chart, and commands to copy.
    """
    figures = [[html_of(figure_of(plot)) for plot in table.plots] for table in tables]
    first = next((drawn for drawn in figures if drawn), [])
    return render_page(
        FOLDER / "tables.html",
        title=title,
        finding=" ".join(table.finding for table in tables if table.finding) or finding,
        plotly=bool(first),
        chart=first.pop(0) if first else None,
        tables=list(zip(tables, figures, strict=True)),
        about=list(about.items()),
        command=command,
        lines=lines,
        commands=commands,
    )


def html_of(figure: go.Figure, *, id: str | None = None) -> Markup:
    """The figure as HTML for a page that includes plotly's JavaScript. Title and legend are HTML above the drawing,
    where they wrap and cover nothing; plotly does not break lines."""
    caption, height = _caption(figure), figure.layout.height - (figure.layout.margin.t - 8)
    figure = go.Figure(figure).update_layout(title_text=None, showlegend=False, margin_t=8, height=height)
    config = {"displayModeBar": False, "responsive": True}
    drawing = Markup(figure.to_html(full_html=False, include_plotlyjs=False, div_id=id, config=config))
    return Markup("<figure>{}{}</figure>").format(caption, drawing)


def _caption(figure: go.Figure) -> Markup:
    """Title and legend. Both are HTML already, since plotly reads them as HTML."""
    key = Markup('<span style="--colour: {}">{}</span>')
    names = [
        key.format(trace.marker.color or trace.line.color, Markup(trace.name))
        for trace in figure.data
        if figure.layout.showlegend and trace.name
    ]
    legend = Markup('<div class="legend">{}</div>').format(Markup(" ").join(names)) if names else Markup("")
    return Markup("<figcaption>{}{}</figcaption>").format(Markup(figure.layout.title.text or ""), legend)


def figure_of(plot: Plot) -> go.Figure:
    """The plot of a table; intervals are error bars."""
    return {"ratios": _ratios, "bars": _bars}[plot.kind](plot)


def _bars(plot: Plot) -> go.Figure:
    """Rows of horizontal bars, with the name of each row above its bars."""
    figure, labels = go.Figure(), dict[str, str]()
    for number, series in enumerate(plot.series):
        names = [escaped(str(x)) for x in series.x]
        labels |= {name: f"{name}  <b>{escaped(text)}</b>" if text else name
                   for name, text in zip_longest(names, series.texts, fillvalue="")}  # fmt: skip
        figure.add_bar(
            name=escaped(series.name), y=names, x=series.y, base=series.begin or None, orientation="h",
            error_x=_errors(series) if series.low else None, marker_color=series.colours or LINES[number % len(LINES)],
        )  # fmt: skip
    figure.update_layout(layout(title=escaped(plot.title)), showlegend=len(plot.series) > 1)
    name_rows(figure, labels, num_bars=len(plot.series))
    return figure.update_xaxes(title_text=escaped(plot.y), rangemode="tozero")


def _errors(series: Series) -> dict[str, Any]:
    y, low, high = map(np.asarray, (series.y, series.low, series.high))
    ends = {"type": "data", "symmetric": False, "array": high - y, "arrayminus": y - low}
    return ends | {"thickness": 1.5, "width": 4, "color": COLOURS["full"]}


_OF_VERDICT = {"faster": COLOURS["gpu"], "slower": COLOURS["wait"]}


def _ratios(plot: Plot) -> go.Figure:
    """A forest plot, coloured by verdict: ratios in the band show no difference, and hollow marks are undecided."""
    figure, labels = go.Figure(), dict[str, str]()
    for series in plot.series:
        low, high = (tuple(np.clip(ends, 1 / FAR, FAR).tolist()) for ends in (series.low, series.high))
        verdicts = [verdict(Ratio(*values, 1.0)) for values in zip(series.y, series.low, series.high, strict=True)]
        names = [escaped(str(name)) for name in series.x]
        labels |= {name: f"{name}  <b>{ratio:.2f}</b>" for name, ratio in zip(names, series.y, strict=True)}
        symbols = ["circle-open" if each == UNDECIDED else "circle" for each in verdicts]
        colours = [_OF_VERDICT.get(each, COLOURS["full"]) for each in verdicts]
        figure.add_scatter(
            x=series.y, y=names, mode="markers", error_x=_errors(replace(series, low=low, high=high)),
            marker={"symbol": symbols, "size": 10, "color": colours},
        )  # fmt: skip
    figure.add_vrect(x0=1 / MARGIN, x1=MARGIN, fillcolor="gray", opacity=0.25, line_width=0)
    figure.update_layout(layout(title=escaped(plot.title)))
    name_rows(figure, labels)
    return figure.update_xaxes(title_text=escaped(plot.x), type="log")
