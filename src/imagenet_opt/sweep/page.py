"""The page of a sweep: its table, and images per second by the parameter with the most values."""

import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.config.overrides import key_of
from imagenet_opt.display.page import html_of, render_page
from imagenet_opt.display.theme import COLOURS, LINES, escaped, layout
from imagenet_opt.sweep.repetitions import SEED, Repetitions, repetitions
from imagenet_opt.sweep.rows import NONE, Row, outcome, parameters, speed
from imagenet_opt.sweep.table import HTML, METRICS, columns_of, show, title_of

_FAILED = COLOURS["wait"]


def write_page(rows: list[Row], sweep_dir: Path) -> None:
    """Write the page. jinja2 escapes the table's texts; the plot's texts are escaped here, since plotly reads HTML."""
    (headings, shown), repeated = columns_of(rows), repetitions(rows)
    names, fastest = list(headings), repeated.best
    metrics = sorted({key for row in rows for key in row["summary"]} - set(METRICS))
    text = render_page(
        Path(__file__).with_name("sweep_page.html"),
        title=title_of(sweep_dir),
        finding=_finding(rows, repeated),
        plotly=bool(fastest),
        rows=rows,
        best=fastest,
        command=shlex.join(_words(fastest[0], names)) if fastest else None,
        settings=repeated.table,
        names=headings,
        same=[(name, rows[0]["parameters"][name]) for name in parameters(rows) if name not in names],
        titles={key: METRICS[key] for key in shown},
        metrics=metrics,
        none=NONE,
        show=show,
        outcome=outcome,
        chart=html_of(_plot(rows, names)) if fastest else None,
    )
    write_atomically(sweep_dir / HTML, text)


def _words(row: Row, names: list[str]) -> list[str]:
    """The overrides of the job that vary, as typed, without its seed."""
    wanted = set(names) - {SEED}
    return [word for word in row["overrides"] if key_of(word) in wanted]


def _finding(rows: list[Row], repeated: Repetitions) -> str:
    num_bad = sum(row["status"] != "ok" for row in rows)
    bad = f"; {num_bad} of {len(rows)} jobs did not finish" if num_bad else ""
    if not repeated.best:
        return f"No job has measured a speed{bad}."
    if repeated.table is not None:
        return f"{repeated.sentence.removesuffix('.')}{bad}."
    winner = repeated.best[0]
    fastest = f"Job {winner['job']} was the fastest of {len(rows)}, with {speed(winner):,.0f} images/s{bad}."
    return f"{fastest} {repeated.sentence}"


def _plot(rows: list[Row], names: list[str]) -> go.Figure:
    """Images per second by the parameter with the most values; a line for each combination of the others."""
    settings = [name for name in names if name != SEED] or names
    axis = max(settings, key=lambda name: len({row["parameters"].get(name) for row in rows}), default="job")
    others = [name for name in settings if name != axis]
    mode = "lines+markers" if settings == names else "markers"  # several seeds have a point each
    places = sorted({_place(row, axis) for row in rows}, key=_order)
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: _order(_place(row, axis))):
        if row["status"] == "ok":
            lines[", ".join(row["parameters"].get(name, NONE) for name in others)].append(row)
    figure = go.Figure()
    for number, (label, line) in enumerate(lines.items()):
        colour = LINES[number % len(LINES)]
        figure.add_scatter(
            **_points(line, axis, names), name=escaped(label), mode=mode, marker_size=9, marker_color=colour
        )
    if bad := [row for row in rows if row["status"] != "ok"]:
        marker = {"symbol": "x", "size": 11, "color": _FAILED}
        points = _points(bad, axis, names) | {"y": [0.0] * len(bad)}
        figure.add_scatter(**points, name="failed or interrupted", mode="markers", marker=marker, cliponaxis=False)
    title = f"Images per second by {axis}" + f"; lines: {', '.join(others)}" * bool(others)
    figure.update_layout(layout(height=420, title=escaped(title)))
    categories = {"type": "category", "categoryorder": "array", "categoryarray": [escaped(place) for place in places]}
    figure.update_xaxes(title_text=escaped(axis), **categories)
    figure.update_yaxes(title_text="images/s", rangemode="tozero")
    return figure.update_layout(showlegend=len(figure.data) > 1)


def _points(rows: list[Row], axis: str, names: list[str]) -> dict[str, Any]:
    return {
        "x": [escaped(_place(row, axis)) for row in rows],
        "y": [speed(row) for row in rows],
        "text": [_hover(row, names) for row in rows],
        "hoverinfo": "text",
    }


def _place(row: Row, axis: str) -> str:
    return str(row["job"]) if axis == "job" else row["parameters"].get(axis, NONE)


def _order(value: str) -> tuple[bool, float, str]:
    """Sort key: numbers by size, then words."""
    try:
        return False, float(value), value
    except ValueError:
        return True, 0.0, value


def _hover(row: Row, names: list[str]) -> str:
    values = [f"{name} = {row['parameters'].get(name, NONE)}" for name in names]
    metrics = [f"{title} {show(row, key)}" for key, (title, _) in METRICS.items()] if row["status"] == "ok" else []
    texts = [f"job {row['job']}: {outcome(row)}", *values, *metrics, row["error"] or ""]
    return "<br>".join(escaped(text) for text in texts if text)
