"""Style of all figures: colours by stage, fonts, grid; readable on a light and on a dark background."""

from functools import partial
from html import escape
from typing import Any

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


def layout(*, height: int, title: str = "", simulated: bool = False, **more: Any) -> dict[str, Any]:
    """Arguments for `Figure.update_layout`. simulated: whether to add "(simulated)" to the title."""
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
        "modebar": {"bgcolor": "rgba(0, 0, 0, 0)", "color": "#98a2b3", "activecolor": COLOURS["loader"]},
        "hoverlabel": {"bgcolor": "#1f2733", "font": {"color": "#fff"}},
        "bargap": 0.3,
        "showlegend": False,
    } | more


def colour(stage: str) -> str:
    """Colour of a key of STAGES."""
    return COLOURS[stage.partition("_")[0]]
