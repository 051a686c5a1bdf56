"""HTML pages that need no network, and their figures, for study, sweep and report."""

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from imagenet_opt.display.table import Plot
from imagenet_opt.display.theme import COLOURS, escaped, layout

FOLDER = Path(__file__).parent
_COLOURS = [colour for stage, colour in COLOURS.items() if stage != "wait"]


def render_page(template: Path, *, title: str, plotly: bool, **values: Any) -> str:
    """Render a template that extends base.html. Texts are escaped here; figures escape their own texts.

    plotly: whether to include plotly's JavaScript, which figures need.
    """
    pages = Environment(
        loader=FileSystemLoader([template.parent, FOLDER]), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    program = Markup(get_plotlyjs()) if plotly else None
    return pages.get_template(template.name).render(title=title, plotly=program, **values)


def html_of(figure: go.Figure, *, id: str | None = None, **config: Any) -> Markup:
    """The figure as HTML for a page that includes plotly's JavaScript. config: plotly's options of a figure."""
    options = {"displayModeBar": False, "responsive": True} | config
    return Markup(figure.to_html(full_html=False, include_plotlyjs=False, div_id=id, config=options))


def figure_of(plot: Plot) -> go.Figure:
    """The plot of a table; intervals are error bars."""
    shapes: dict[str, Any] = {"bars": go.Bar, "lines": go.Scatter}
    figure = go.Figure()
    for series in plot.series:
        errors = None
        if series.low:
            errors = {
                "type": "data",
                "symmetric": False,
                "array": [high - y for high, y in zip(series.high, series.y, strict=True)],
                "arrayminus": [y - low for low, y in zip(series.low, series.y, strict=True)],
            }
        x = [escaped(value) if isinstance(value, str) else value for value in series.x]
        figure.add_trace(shapes[plot.kind](name=escaped(series.name), x=x, y=series.y, error_y=errors))
    figure.update_layout(
        layout(height=420, title=plot.title), colorway=_COLOURS, showlegend=len(plot.series) > 1, margin_b=60
    )
    figure.update_xaxes(title_text=plot.x)
    return figure.update_yaxes(title_text=plot.y)
