"""Figures of a diagnosis: ceilings, the parts of a step, step times, and curves."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from imagenet_opt.display.page import figure_of
from imagenet_opt.display.table import Plot, Series
from imagenet_opt.display.theme import AXIS, COLOURS, SIMULATED, layout
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.report.timeline_chart import min_max

REACH = 2.0
"""Bars are cut at this multiple of the GPU's ceiling, since the GPU cannot use a higher rate."""
NUM_BINS = 60
SMALL_PHASE = 0.01
"""Share of a step; a run has a phase for each of a dozen callbacks, most of them short."""
SIMULATED_STAGES = ("gpu", "copy", "full")
"""Prefixes of the stages in which a simulated accelerator takes part."""
CURVES = {
    "workers": ("Loader workers", "workers", "decode"),
    "reads_in_flight": ("Reads in flight", "requests in flight", "storage"),
}
"""Name of a curve -> title, label of the x axis, stage whose colour it has."""


def ceilings(diagnosis: Diagnosis) -> go.Figure:
    """A bar with an interval for each experiment; lines across for the full run (solid) and its expected rate (dashed).

    The lines are drawn only if the diagnosis was judged.
    """
    found = diagnosis.measurements
    measured = {name: found.ceilings[name] for name in found.stages if name in found.ceilings}
    not_real = () if found.simulated is None else tuple(name for name in measured if name.startswith(SIMULATED_STAGES))
    rates = [each.images_per_second for each in measured.values()]
    ends = [rate for name, rate in zip(measured, rates, strict=True) if name.startswith(("gpu", "full"))]
    limit = REACH * max([*ends, diagnosis.measured, diagnosis.expected])
    intervals = [(each.estimate.low, each.estimate.high) for each in measured.values()]
    bars = Series(
        "",
        tuple(f"{found.stages[name]} ({SIMULATED})" if name in not_real else found.stages[name] for name in measured),
        tuple(min(rate, limit) for rate in rates),
        tuple(min(low, limit) for low, _ in intervals),
        tuple(min(high, limit) for _, high in intervals),
        texts=tuple(f"{rate:,.0f}{' →' if rate > limit else ''}" for rate in rates),
        colours=tuple(COLOURS[name.partition("_")[0]] for name in measured),
    )
    title = "Images per second of each stage alone"
    if diagnosis.is_judged:
        title += f"; lines: measured {diagnosis.measured:,.0f} (solid), expected {diagnosis.expected:,.0f} (dashed)"
    figure = figure_of(Plot(_marked(title, diagnosis), "", "images/s", "bars", (bars,)))
    for rate, dash in ((diagnosis.measured, "solid"), (diagnosis.expected, "dash")) if diagnosis.is_judged else ():
        figure.add_vline(rate, opacity=0.7, layer="below", line={"color": COLOURS["wait"], "width": 2, "dash": dash})
    return figure.update_xaxes(range=[0, limit * 1.02])


def _marked(title: str, diagnosis: Diagnosis) -> str:
    return title if diagnosis.measurements.simulated is None else f"{title} ({SIMULATED})"


def waterfall(diagnosis: Diagnosis) -> go.Figure:
    """The parts of a step in ms, from the GPU alone to the full run; the last bar is the sum of the parts."""
    *parts, _ = diagnosis.waterfall
    begin = [*accumulate((part.seconds for part in parts), initial=0.0)][: len(parts)]
    rows = [(part.name, part.seconds) for part in diagnosis.waterfall]
    return _of_a_step(diagnosis, "The parts of one step", rows, [*begin, 0.0])


def phases(diagnosis: Diagnosis) -> go.Figure:
    """A bar for each phase of the main process in one step of the full run, without short phases."""
    measured = diagnosis.measurements.phases
    least = SMALL_PHASE * sum(measured.values())
    rows = [(name, seconds) for name, seconds in measured.items() if seconds >= least]
    return _of_a_step(diagnosis, f"The main process in one step of the full run, phases above {SMALL_PHASE:.0%}", rows)


def _of_a_step(
    diagnosis: Diagnosis, title: str, rows: Sequence[tuple[str, float]], begin: Sequence[float] = ()
) -> go.Figure:
    """A bar for each row, a name and seconds, in ms. begin: seconds at which each bar begins."""
    bars = Series(
        "",
        tuple(name for name, _ in rows),
        tuple(seconds * 1e3 for _, seconds in rows),
        begin=tuple(seconds * 1e3 for seconds in begin),
        texts=tuple(f"{seconds * 1e3:,.1f} ms" for _, seconds in rows),
        colours=tuple(part_colour(name) for name, _ in rows),
    )
    return figure_of(Plot(_marked(title, diagnosis), "", "ms", "bars", (bars,)))


_WORDS = {
    "callback": "full", "fetch": "wait", "reading": "storage", "contention": "contention", "copy": "copy", "gpu": "gpu",
    "step": "gpu", "check": "storage", "log": "contention", "full run": "full",
}  # fmt: skip
"""Word in the name of a part of a step -> stage whose colour the part has; the first match counts."""


def part_colour(name: str) -> str:
    return COLOURS[next((kind for word, kind in _WORDS.items() if word in name.lower()), "loader")]


def histogram(seconds: Sequence[float], whose: str, *, simulated: bool = False) -> go.Figure:
    """Histogram of step times in ms, with p50 and p99. whose: the run that has these steps."""
    milliseconds = np.asarray(seconds) * 1e3
    counts, edges = np.histogram(milliseconds, bins=NUM_BINS)
    percentiles = dict(zip(("p50", "p99"), np.percentile(milliseconds, (50, 99)).tolist(), strict=True))
    figure = go.Figure()
    figure.add_bar(
        x=(edges[:-1] + edges[1:]) / 2, y=counts / counts.sum(), width=np.diff(edges), opacity=0.85,
        marker_color=COLOURS["loader"], hovertemplate="%{x:.1f} ms: %{y:.1%}<extra></extra>",
    )  # fmt: skip
    for level, (name, place) in enumerate(percentiles.items()):
        line = {"color": COLOURS["loader"], "width": 1.5, "dash": "dot"}
        figure.add_vline(
            place, opacity=1, line=line, annotation_text=name, annotation_position="top right",
            annotation_yshift=-18 * level,
        )  # fmt: skip
    texts = ", ".join(f"{name} {place:,.1f} ms" for name, place in percentiles.items())
    title = f"Step times: {len(seconds):,} steps of {whose}, {texts}"
    figure.update_layout(layout(height=300, title=title, simulated=simulated, bargap=0), margin_r=36)
    figure.update_yaxes(title_text="share of steps", tickformat=".0%", rangemode="tozero")
    return figure.update_xaxes(title_text="ms")


def curve(diagnosis: Diagnosis, name: str) -> go.Figure:
    """Images per second over a setting. Dashed: the rate of the GPU while the loader runs."""
    title, setting, kind = CURVES[name]
    xs, ys = zip(*sorted(diagnosis.measurements.curves[name]), strict=True)
    figure = go.Figure()
    figure.add_scatter(
        x=xs, y=ys, mode="lines+markers", line={"color": COLOURS[kind], "width": 2}, marker_size=7,
        hovertemplate=f"{setting} %{{x}}: %{{y:,.0f}} images/s<extra></extra>",
    )  # fmt: skip
    ceilings = diagnosis.measurements.ceilings
    gpu = ceilings.get("gpu_beside_loader", ceilings.get("gpu"))
    needed = gpu.images_per_second if gpu else max(ys)
    if gpu:
        words = "rate of the GPU" + (f" ({SIMULATED})" if diagnosis.measurements.simulated else "")
        line = {"color": COLOURS["gpu"], "width": 1.5, "dash": "dash"}
        figure.add_hline(needed, opacity=1, line=line, annotation_text=words, annotation_position="top left")
    figure.update_layout(layout(height=280, title=title))
    figure.update_xaxes(title_text=setting)
    return figure.update_yaxes(title_text="images/s", range=[0, 1.12 * max([*ys, needed])])


AXES = {
    "images/s": {"throughput/images_per_second": "full"},
    "data wait, share": {"throughput/data_wait_fraction": "wait"},
    "GPU busy, %": {"gpu/utilization_percent": "gpu"},
    "accelerator busy": {"rehearsal/accelerator_utilization": "gpu"},
    "loss": {"train/loss": "loader", "val/loss": "decode"},
    "top-1": {"train/acc1": "loader", "val/acc1": "decode"},
    "learning rate": {"lr": "full"},
}
"""Label of an axis -> columns of metrics.csv, each with the stage whose colour it has."""


def over_steps(rows: Sequence[tuple[int, Mapping[str, float]]], *, simulated: bool = False) -> go.Figure | None:
    """Columns of metrics.csv over the steps; None without a known column. Axes without a value are left out."""
    logged = {name for _, row in rows for name in row}
    known = {label: columns for label, columns in AXES.items() if logged & columns.keys()}
    if not known:
        return None
    title = "Over the whole run" + (": training blue, validation orange" if {"loss", "top-1"} & known.keys() else "")
    figure = make_subplots(rows=len(known), cols=1, shared_xaxes=True, vertical_spacing=0.06)
    for place, (label, columns) in enumerate(known.items(), 1):
        for name in (name for name in columns if name in logged):
            steps, values = zip(*((step, row[name]) for step, row in rows if name in row), strict=True)
            xs, ys = min_max(steps, values, most=2000)
            line = {"color": COLOURS[columns[name]], "width": 1.5}
            figure.add_scatter(
                x=xs, y=ys, mode="lines" if len(xs) > 1 else "markers", line=line, name=name, row=place, col=1
            )
        figure.update_yaxes(title_text=label, rangemode="tozero", row=place, col=1)
    figure.update_traces(hovertemplate="%{fullData.name}, step %{x}: %{y:.4g}<extra></extra>")
    figure.update_layout(layout(height=90 + 130 * len(known), title=title, simulated=simulated))
    figure.update_xaxes(AXIS).update_yaxes(AXIS)
    return figure.update_xaxes(title_text="step", row=len(known), col=1)
