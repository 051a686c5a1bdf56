"""The timeline figure: events and samples of the machine during a run, in rows with one time axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray
from plotly.subplots import make_subplots

from imagenet_opt.display.theme import AXIS, COLOURS, layout
from imagenet_opt.measure.telemetry.timeline import INTERVAL_SECONDS, Timeline
from imagenet_opt.report.run_files import PAUSE_SECONDS

MOST_POINTS = 10_000
"""Most points of a line, and most events of a kind: all samples of half an hour. A longer run shows the minimum and
maximum of each stretch of samples, and the longest events."""
_MOST_MARKS = 300
"""Number of the longest waits for a batch, and of events of another kind, that are marked through all rows."""
LANES = {"step": "gpu", "fetch": "wait", "validation": "decode", "checkpoint": "storage", "logging": "contention"}
"""Kind of event, from the top -> stage whose colour it has."""
Line = tuple[str, str, str]
ROWS: dict[str, tuple[Line, ...]] = {
    "GPU, %": (("gpu_utilization_percent", "busy", "gpu"),),
    "GPU, W": (("gpu_power_watts", "power", "gpu"),),
    "CPU, %": (("workers_cpu_percent", "workers", "loader"), ("trainer_cpu_percent", "main process", "gpu")),
    "all CPUs, %": (("cpu_percent", "busy", "decode"),),
    "stalled, %": (
        ("io_pressure_percent", "on storage", "storage"),
        ("cpu_pressure_percent", "on CPUs", "decode"),
        ("memory_pressure_percent", "on memory", "contention"),
    ),
    "GiB": (("page_cache_gib", "page cache", "storage"), ("memory_used_gib", "memory used", "full")),
    "disk, MB/s": (
        ("disk_read_mb_per_second", "read", "storage"),
        ("disk_write_mb_per_second", "written", "decode"),
    ),
    "network, MB/s": (
        ("network_received_mb_per_second", "received", "copy"),
        ("network_sent_mb_per_second", "sent", "decode"),
    ),
    "batches ready": (("queue_depth", "queue", "loader"),),
}
"""Title of a row -> its lines: column of the samples, label, stage whose colour it has. "stalled": share of the time in
which some process waited (/proc/pressure)."""
_EVENTS = "main process"


def timeline(recording: Timeline, *, simulated: bool = False) -> go.Figure:
    """The events of the main process, and below them the rows that have data; the title says the resolution."""
    start, end = ends(recording)
    rows = {
        title: known
        for title, lines in ROWS.items()
        if (known := [line for line in lines if np.isfinite(recording.samples.get(line[0], np.nan)).any()])
    }
    titles = [_EVENTS, *rows]
    figure = make_subplots(rows=len(titles), cols=1, shared_xaxes=True, vertical_spacing=0.16 / len(titles))
    _add_events(figure, recording, start)
    for title, lines in rows.items():
        for line in lines:
            _add_line(figure, recording, line, start, titles.index(title) + 1)
        _name_lines(figure, lines, titles.index(title) + 1)
    height, title = 90 + 115 * len(titles), _resolution(recording)
    figure.update_layout(layout(height=height, title=title, simulated=simulated, hovermode="x"))
    figure.update_layout(shapes=_shapes(recording, start))
    figure.update_xaxes(AXIS | {"range": [0, end - start]}).update_yaxes(AXIS | {"title_font_size": 11})
    for place, title in enumerate(titles, 1):
        figure.update_yaxes(title_text=title, row=place, col=1)
    return figure.update_xaxes(title_text="seconds since the first sample", row=len(titles), col=1)


def _resolution(recording: Timeline) -> str:
    times = recording.samples.get("unix_seconds", ())
    interval = float(np.median(np.diff(times))) if len(times) > 1 else INTERVAL_SECONDS
    if len(times) <= MOST_POINTS:
        return f"Every {1e3 * interval:.0f} ms"
    return f"Minimum and maximum per {2 * interval * len(times) / MOST_POINTS:.1f} s"


def ends(recording: Timeline) -> tuple[float, float]:
    """Unix seconds of the first sample, or without samples of the first event, and of the last sample or event."""
    times, events = recording.samples.get("unix_seconds", ()), recording.events
    start = next(iter([*times[:1], *events.get("begin_unix_seconds", ())[:1]]), 0.0)
    last = max([*times[-1:], *events.get("end_unix_seconds", ())[-1:]], default=start)
    return float(start), max(float(last), float(start) + INTERVAL_SECONDS)


def _name_lines(figure: go.Figure, lines: Sequence[Line], row: int) -> None:
    """Write the names of the lines above their row, in the colours of the lines."""
    names = [f'<span style="color: {COLOURS[stage]}">{label}</span>' for _, label, stage in lines]
    if len(names) > 1:
        place: dict[str, Any] = {"x": 0, "y": 1, "xref": "x domain", "yref": f"y{row} domain", "font_size": 11}
        figure.add_annotation(
            text="  ".join(names), xanchor="left", yanchor="bottom", yshift=-4, showarrow=False, **place
        )


def _add_line(figure: go.Figure, recording: Timeline, line: Line, start: float, row: int) -> None:
    """Draw a line with a nan at each pause of the recording, so that no line crosses the pause."""
    column, label, stage = line
    times, values = recording.samples["unix_seconds"] - start, recording.samples[column].astype(np.float64)
    pauses = np.flatnonzero(np.diff(times) > PAUSE_SECONDS) + 1
    times, values = np.insert(times, pauses, times[pauses - 1] + 0.01), np.insert(values, pauses, np.nan)
    xs, ys = min_max(times, values, most=MOST_POINTS)
    figure.add_scatter(
        x=xs.astype(np.float32), y=ys.astype(np.float32), mode="lines", name=label, row=row, col=1,
        line={"color": COLOURS[stage], "width": 1.2, "shape": "hv"},
        hovertemplate=f"{label} %{{y:,.4g}}<extra></extra>",
    )  # fmt: skip
    figure.update_yaxes(rangemode="tozero", row=row, col=1)


def _add_events(figure: go.Figure, recording: Timeline, start: float) -> None:
    """Draw a thick line for each event, in a lane for each kind."""
    kinds = [kind for kind in LANES if len(recording.spans(kind))]
    for lane, kind in enumerate(kinds):
        spans = longest(recording.spans(kind), MOST_POINTS) - start
        xs = np.column_stack([spans, np.full(len(spans), np.nan)]).ravel()
        figure.add_scatter(
            x=xs.astype(np.float32), y=np.full(len(xs), -lane, np.float32), mode="lines", name=kind, row=1, col=1,
            line={"color": COLOURS[LANES[kind]], "width": 9, "simplify": False},
            hovertemplate=f"{kind} %{{x:.2f}}<extra></extra>",
        )  # fmt: skip
    lanes = {"tickvals": [-lane for lane in range(len(kinds))], "ticktext": kinds}
    figure.update_yaxes(**lanes, range=[0.6 - max(1, len(kinds)), 0.6], showgrid=False, row=1, col=1)


def longest(spans: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """The `most` longest spans, in their order."""
    if len(spans) <= most:
        return spans
    return spans[np.sort(np.argsort(spans[:, 0] - spans[:, 1], kind="stable")[:most])]


def _shapes(recording: Timeline, start: float) -> list[dict[str, Any]]:
    """Through all rows: a band for each long wait for a batch, and lines where epochs, validations and checkpoints
    start."""
    across = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    band = across | {"type": "rect", "fillcolor": COLOURS["wait"], "opacity": 0.12, "line_width": 0}
    waits = np.round(longest(recording.spans("fetch"), _MOST_MARKS) - start, 3).tolist()
    kinds = {"epoch": ("full", "dash"), "validation": ("decode", "dot"), "checkpoint": ("storage", "dot")}
    return [band | {"x0": begin, "x1": end} for begin, end in waits] + [
        across
        | {"type": "line", "opacity": 1, "x0": begin, "x1": begin}
        | {"line": {"color": COLOURS[stage], "width": 1, "dash": dash}}
        for kind, (stage, dash) in kinds.items()
        for begin in np.round(longest(recording.spans(kind), _MOST_MARKS)[:, 0] - start, 3).tolist()
    ]


def min_max(x: ArrayLike, y: ArrayLike, *, most: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """About `most` of the points, in their order: the minimum and maximum of y in each of most/2 equal stretches.

    x: ascending. A stretch without a finite y gives one nan, so that a gap in the data stays a gap in the figure.
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(xs) <= most:
        return xs, ys
    edges = np.linspace(0, len(xs), max(1, most // 2) + 1).astype(int)
    kept = np.union1d(_first_of(np.fmin, ys, edges), _first_of(np.fmax, ys, edges))
    return xs[kept], ys[kept]


def _first_of(extreme: np.ufunc, ys: NDArray[np.float64], edges: NDArray[np.int_]) -> NDArray[np.int_]:
    """Index of the first extreme of each stretch; the first index of a stretch that is all nan."""
    stretch = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    levels = extreme.reduceat(ys, edges[:-1])[stretch]
    places = np.flatnonzero((ys == levels) | np.isnan(levels))
    return places[np.unique(stretch[places], return_index=True)[1]]
