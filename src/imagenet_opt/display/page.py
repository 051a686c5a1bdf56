"""HTML pages that need no network, and their figures, for study, sweep and report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from imagenet_opt.display.table import FAR, Plot, Series
from imagenet_opt.display.theme import COLOURS, escaped, layout
from imagenet_opt.measure.stats.block_ratios import MARGIN, UNDECIDED, Ratio, verdict

FOLDER = Path(__file__).parent
_COLOURS = [colour for stage, colour in COLOURS.items() if stage != "wait"]


def render_page(template: Path, *, title: str, plotly: bool | str, **values: Any) -> str:
    """Render a template that extends base.html. Texts are escaped here; figures escape their own texts.

    plotly: whether to include plotly's JavaScript, which figures need; or the address to load it from.
    """
    pages = Environment(
        loader=FileSystemLoader([template.parent, FOLDER]), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    program = Markup(get_plotlyjs()) if plotly is True else plotly
    return pages.get_template(template.name).render(title=title, plotly=program, **values)


def html_of(figure: go.Figure, *, id: str | None = None, **config: Any) -> Markup:
    """The figure as HTML for a page that includes plotly's JavaScript. config: plotly's options of a figure."""
    options = {"displayModeBar": False, "responsive": True} | config
    return Markup(figure.to_html(full_html=False, include_plotlyjs=False, div_id=id, config=options))


def figure_of(plot: Plot) -> go.Figure:
    """The plot of a table; intervals are error bars."""
    if plot.kind == "ratios":
        return _ratios(plot)
    shapes: dict[str, Any] = {"bars": go.Bar, "lines": go.Scatter}
    figure = go.Figure()
    for series in plot.series:
        errors = _errors(series) if series.low else None
        x = [escaped(value) if isinstance(value, str) else value for value in series.x]
        figure.add_trace(shapes[plot.kind](name=escaped(series.name), x=x, y=series.y, error_y=errors))
    figure.update_layout(
        layout(height=420, title=plot.title), colorway=_COLOURS, showlegend=len(plot.series) > 1, margin_b=60
    )
    figure.update_xaxes(title_text=plot.x)
    return figure.update_yaxes(title_text=plot.y)


def _errors(series: Series) -> dict[str, Any]:
    y, low, high = map(np.asarray, (series.y, series.low, series.high))
    return {"type": "data", "symmetric": False, "array": high - y, "arrayminus": y - low}


def _ratios(plot: Plot) -> go.Figure:
    """A forest plot: ratios in the band show no difference, and hollow marks are undecided."""
    figure = go.Figure()
    for series in plot.series:
        low, high = (tuple(np.clip(ends, 1 / FAR, FAR).tolist()) for ends in (series.low, series.high))
        verdicts = [verdict(Ratio(*values, 1.0)) for values in zip(series.y, series.low, series.high, strict=True)]
        figure.add_scatter(
            x=series.y, y=[escaped(str(name)) for name in series.x], mode="markers",
            error_x=_errors(replace(series, low=low, high=high)),
            marker={"symbol": ["circle-open" if each == UNDECIDED else "circle" for each in verdicts], "size": 10},
        )  # fmt: skip
    figure.add_vrect(x0=1 / MARGIN, x1=MARGIN, fillcolor="gray", opacity=0.25, line_width=0)
    num = max((len(series.x) for series in plot.series), default=0)
    figure.update_layout(layout(height=140 + 36 * num, title=plot.title), colorway=_COLOURS, showlegend=False)
    figure.update_xaxes(title_text=plot.x, type="log")
    return figure.update_yaxes(title_text=plot.y, autorange="reversed")
