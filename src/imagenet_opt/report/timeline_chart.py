"""The timeline figure: events, cores and samples of the machine during a run, in rows with one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.display.theme import AXIS, COLOURS, layout
from imagenet_opt.measure.telemetry.timeline import INTERVAL_SECONDS, Timeline
from imagenet_opt.report.downsample import min_max
from imagenet_opt.report.run_files import PAUSE_SECONDS

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_POINTS = 4000
"""Points drawn at a time for a line or a kind of event: seven minutes of samples without downsampling."""
MOST_BANDS = 300
"""Number of the longest waits that are shaded through all rows."""
MOST_TIMES = 1500
"""Columns of the heat map of the cores; a column shows each core's maximum in a stretch of time."""
LANES = {"step": "gpu", "fetch": "wait", "validation": "decode", "checkpoint": "storage", "logging": "contention"}
"""Kind of event, from the top -> stage whose colour it has."""


@dataclass(frozen=True)
class Line:
    """A column of the timeline's samples or of another of its tables, drawn as a line."""

    column: str
    label: str
    colour: str
    table: str = "samples"


ROWS = {
    "GPU, %": (Line("gpu_utilization_percent", "busy", "gpu", "gpu_utilization"),),
    "GPU, W": (Line("gpu_power_watts", "power", "gpu", "gpu_power"),),
    "CPU, %": (Line("workers_cpu_percent", "workers", "loader"), Line("trainer_cpu_percent", "main process", "gpu")),
    "stalled, %": (
        Line("io_pressure_percent", "on storage", "storage"),
        Line("cpu_pressure_percent", "on CPUs", "decode"),
        Line("memory_pressure_percent", "on memory", "contention"),
    ),
    "GiB": (Line("page_cache_gib", "page cache", "storage"), Line("memory_used_gib", "memory used", "full")),
    "disk, MB/s": (
        Line("disk_read_mb_per_second", "read", "storage"),
        Line("disk_write_mb_per_second", "written", "decode"),
    ),
    "network, MB/s": (
        Line("network_received_mb_per_second", "received", "copy"),
        Line("network_sent_mb_per_second", "sent", "decode"),
    ),
    "batches ready": (Line("queue_depth", "queue", "loader"),),
}
"""Title of a row -> its lines. "stalled": share of the time in which some process waited (/proc/pressure)."""
CORES = "each core, %"
_ACROSS = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
BAND = _ACROSS | {"type": "rect", "fillcolor": COLOURS["wait"], "opacity": 0.12, "line_width": 0}
"""Shape of a wait; `x0` and `x1` are added."""
_EVENTS = "main process"
COARSE = "Minimum and maximum per {} s"
"""Title when there are too many samples to draw each of them."""


def timeline(recording: Timeline, *, simulated: bool = False) -> "go.Figure":
    """The events of the main process, and below them the rows that have data."""
    from plotly.subplots import make_subplots

    rows = shown_lines(recording)
    titles = [_EVENTS, *([CORES] if recording.cores_percent().size else []), *rows]
    start = start_seconds(recording)
    figure = make_subplots(rows=len(titles), cols=1, shared_xaxes=True, vertical_spacing=0.16 / len(titles))
    _add_events(figure, recording, start)
    if CORES in titles:
        _add_cores(figure, recording, start, titles.index(CORES) + 1)
    for title, lines in rows.items():
        for line in lines:
            _add_line(figure, recording, line, start, titles.index(title) + 1)
    _mark(figure, recording, start)
    words = resolution(len(recording.samples.get("unix_seconds", ())), MOST_POINTS)
    figure.update_layout(layout(height=90 + 115 * len(titles), title=words, simulated=simulated, hovermode="x"))
    figure.update_xaxes(AXIS | {"range": [0, _seconds(recording, start)]}).update_yaxes(AXIS | {"title_font_size": 11})
    for place, title in enumerate(titles, 1):
        figure.update_yaxes(title_text=title, row=place, col=1)
        _name_lines(figure, rows.get(title, []), place)
    return figure.update_xaxes(title_text="seconds since the first sample", row=len(titles), col=1)


def _name_lines(figure: "go.Figure", lines: Sequence[Line], row: int) -> None:
    """Write the names of the lines above their row, in the colours of the lines."""
    names = [f'<span style="color: {COLOURS[line.colour]}">{line.label}</span>' for line in lines]
    if len(names) > 1:
        place: dict[str, Any] = {"x": 0, "y": 1, "xref": "x domain", "yref": f"y{row} domain", "font_size": 11}
        figure.add_annotation(
            text="  ".join(names), xanchor="left", yanchor="bottom", yshift=-4, showarrow=False, **place
        )


def shown_lines(recording: Timeline) -> dict[str, list[Line]]:
    """The ROWS and lines that have data."""
    return {
        title: known for title, lines in ROWS.items() if (known := [line for line in lines if _has(recording, line)])
    }


def _has(recording: Timeline, line: Line) -> bool:
    values = getattr(recording, line.table).get(line.column)
    return values is not None and bool(np.isfinite(values).any())


def resolution(num: int, most: int) -> str:
    """Title that says how finely `num` samples are drawn with at most `most` points."""
    if num <= most:
        return f"Every {1e3 * INTERVAL_SECONDS:.0f} ms"
    return COARSE.format(f"{2 * num / most * INTERVAL_SECONDS:.1f}")


def start_seconds(recording: Timeline) -> float:
    """Unix seconds of the first sample, or of the first event if there are no samples."""
    times = [table["unix_seconds"][0] for table in (recording.samples, recording.gpu_utilization) if table]
    times = times or [*recording.events.get("begin_unix_seconds", ())[:1]]
    return float(min(times, default=0.0))


def _seconds(recording: Timeline, start: float) -> float:
    times = [table["unix_seconds"][-1] for table in (recording.samples, recording.gpu_utilization) if table]
    end = max([*times, *recording.events.get("end_unix_seconds", ())[-1:]], default=start)
    return float(max(end - start, INTERVAL_SECONDS))


def _add_line(figure: "go.Figure", recording: Timeline, line: Line, start: float, row: int) -> None:
    table = getattr(recording, line.table)
    xs, ys = min_max(*with_gaps(table["unix_seconds"] - start, table[line.column]), most=MOST_POINTS)
    figure.add_scatter(
        x=xs.astype(np.float32), y=ys.astype(np.float32), mode="lines", name=line.label, row=row, col=1,
        line={"color": COLOURS[line.colour], "width": 1.2, "shape": "hv"},
        hovertemplate=f"{line.label} %{{y:,.4g}}<extra></extra>",
    )  # fmt: skip
    figure.update_yaxes(rangemode="tozero", row=row, col=1)


def with_gaps(
    times: NDArray[np.float64], values: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Insert a nan at each pause of the recording, so that no line crosses the pause."""
    places = np.flatnonzero(np.diff(times) > PAUSE_SECONDS) + 1
    return np.insert(times, places, times[places - 1] + 0.01), np.insert(values.astype(np.float64), places, np.nan)


def cores_thinned(recording: Timeline, start: float, most: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times, and the maximum percent of each core from each time to the next: (cores, times)."""
    cores, times = recording.cores_percent(), recording.samples.get("unix_seconds", np.zeros(0)) - start
    edges = np.arange(0, len(times), max(1, -(-len(times) // most)))
    if not cores.size:
        return times, np.zeros((0, 0))
    return times[edges], np.fmax.reduceat(cores, edges).T.clip(0, 100).round()


def _add_cores(figure: "go.Figure", recording: Timeline, start: float, row: int) -> None:
    times, busy = cores_thinned(recording, start, MOST_TIMES)
    figure.add_heatmap(
        name=CORES, x=np.round(times, 2), z=busy.astype(np.float32),
        zmin=0, zmax=100, colorscale=[[0, "rgba(221, 122, 43, 0)"], [1, COLOURS["decode"]]], showscale=False,
        hovertemplate="core %{y}: %{z:.0f} %<extra></extra>", row=row, col=1,
    )  # fmt: skip
    figure.update_yaxes(showgrid=False, dtick=max(1, len(busy) // 4), row=row, col=1)


def _add_events(figure: "go.Figure", recording: Timeline, start: float) -> None:
    """A thick line for each event, in a lane for each kind; at most the MOST_POINTS longest events of a kind."""
    shown = shown_lanes(recording)
    for kind, lane in shown.items():
        spans = longest(recording.spans(kind), MOST_POINTS) - start
        xs = np.column_stack([spans, np.full(len(spans), np.nan)]).ravel()
        figure.add_scatter(
            x=xs.astype(np.float32), y=np.full(len(xs), lane, np.float32), mode="lines", name=kind, row=1, col=1,
            line={"color": COLOURS[LANES[kind]], "width": 9, "simplify": False},
            hovertemplate=f"{kind} %{{x:.2f}}<extra></extra>",
        )  # fmt: skip
    lanes = {"tickvals": list(shown.values()), "ticktext": list(shown)}
    figure.update_yaxes(**lanes, range=[0.6 - max(1, len(shown)), 0.6], showgrid=False, row=1, col=1)


def shown_lanes(recording: Timeline) -> dict[str, int]:
    """The LANES that have events, with their y coordinates."""
    return {kind: -lane for lane, kind in enumerate(kind for kind in LANES if len(recording.spans(kind)))}


def longest(spans: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """The `most` longest spans, in their order."""
    if len(spans) <= most:
        return spans
    return spans[np.sort(np.argsort(spans[:, 0] - spans[:, 1], kind="stable")[:most])]


def _mark(figure: "go.Figure", recording: Timeline, start: float) -> None:
    """Draw through all rows: bands for the longest waits, lines where epochs, validations and checkpoints start."""
    bands = [
        BAND | {"x0": begin, "x1": end}
        for begin, end in np.round(longest(recording.spans("fetch"), MOST_BANDS) - start, 3).tolist()
    ]
    marks = [
        _ACROSS
        | {"type": "line", "opacity": 1, "x0": begin, "x1": begin, "line": {"color": tint, "width": 1, "dash": dash}}
        for kind, tint, dash in (
            ("epoch", COLOURS["full"], "dash"),
            ("validation", COLOURS["decode"], "dot"),
            ("checkpoint", COLOURS["storage"], "dot"),
        )
        for begin in np.round(longest(recording.spans(kind), MOST_BANDS // 3)[:, 0] - start, 3).tolist()
    ]
    figure.update_layout(shapes=bands + marks)
