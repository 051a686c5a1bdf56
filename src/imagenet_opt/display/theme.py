"""Style of all figures: colours by stage, fonts, grid; readable on a light and on a dark background."""

from collections.abc import Mapping
from functools import partial
from html import escape
from typing import Any

import plotly.graph_objects as go

COLOURS = {
    "gpu": "#2f9e5b",
    "loader": "#2b6cb0",
    "decode": "#dd7a2b",
    "storage": "#8053a8",
    "copy": "#159aa8",
    "full": "#64748b",
    "contention": "#c2a83e",
    "wait": "#d64545",
}
"""Colours of stages, by the first word of their keys, and of the causes that delay a step."""
LINES = [colour for stage, colour in COLOURS.items() if stage != "wait"]
"""Colours of lines and bars that belong to no stage."""
SIMULATED = "simulated"
_GRID = "rgba(127, 135, 150, 0.25)"
AXIS = {
    "showgrid": True,
    "gridcolor": _GRID,
    "zeroline": False,
    "linecolor": _GRID,
    "tickcolor": _GRID,
    "automargin": True,
    "title_font_size": 12,
}
"""Options of an axis, also for the further rows of a figure, which `layout` does not set."""

escaped = partial(escape, quote=False)
"""Escapes texts from files: plotly reads texts as HTML, but does not know &quot;."""


def layout(*, height: int | None = None, title: str = "", simulated: bool = False, **more: Any) -> dict[str, Any]:
    """Arguments for `Figure.update_layout`.

    height: in pixels; None if `name_rows` sets it. simulated: whether to add "(simulated)" to the title.
    """
    words = [title, f"<i>({SIMULATED})</i>" if simulated else ""]
    return {
        "template": "simple_white",
        "height": height,
        "title": {"text": " ".join(filter(None, words)), "x": 0, "xref": "container", "font": {"size": 14}},
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "paper_bgcolor": "rgba(0, 0, 0, 0)",
        "plot_bgcolor": "rgba(0, 0, 0, 0)",
        "margin": {"l": 10, "r": 20, "t": 34 if any(words) else 12, "b": 44},
        **{f"{axis}_{name}": value for axis in ("xaxis", "yaxis") for name, value in AXIS.items()},
        "hoverlabel": {"bgcolor": "#1f2733", "font": {"color": "#fff"}},
        "bargap": 0.3,
        "showlegend": False,
    } | more


_LABEL, _BAR = 24, 14
"""Height of the name of a row and of a bar, in pixels."""


def name_rows(figure: go.Figure, labels: Mapping[str, str], *, num_bars: int = 1) -> None:
    """Write the name of each row above its bars, so that on a phone the bars have the whole width.

    Sets the height of the figure. labels: shown text of each category of the y axis, from the top. num_bars: bars of a
    row.
    """
    bars, margin = num_bars * _BAR, figure.layout.margin
    row = bars + _LABEL
    figure.update_layout(bargap=1 - bars / row, bargroupgap=0, margin_l=8)
    figure.update_layout(height=row * len(labels) + _LABEL // 2 + (margin.t or 0) + (margin.b or 0))
    figure.update_traces(marker_line_width=0, selector={"type": "bar"})
    for name, label in labels.items():
        figure.add_annotation(
            x=0, xref="paper", xanchor="left", y=name, yanchor="bottom", yshift=bars / 2 + 1, text=label,
            showarrow=False, font_size=11,
        )  # fmt: skip
    figure.update_yaxes(
        categoryorder="array", categoryarray=list(labels), range=[len(labels) - 0.5, -0.5 - _LABEL / 2 / row],
        showticklabels=False, ticks="", showgrid=False, showline=False, title_text=None,
    )  # fmt: skip
