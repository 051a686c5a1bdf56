"""Figures of a diagnosis: ceilings, the parts of a step, step times, and curves."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from imagenet_opt.display.theme import AXIS, COLOURS, SIMULATED, colour, escaped, layout, name_rows
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.report.run_files import Steps
from imagenet_opt.report.timeline_chart import min_max

REACH = 2.0
"""Bars are cut at this multiple of the GPU's ceiling, since the GPU cannot use a higher rate."""
NUM_BINS = 60
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
    measured, simulated = diagnosis.measurements.ceilings, diagnosis.measurements.simulated is not None
    names = diagnosis.measurements.stages
    stages = [name for name in names if name in measured]
    ends = [measured[name].images_per_second for name in stages if name.startswith(("gpu", "full"))]
    limit = REACH * max([*ends, diagnosis.measured, diagnosis.expected])
    figure, labels = go.Figure(), dict[str, str]()
    for name in stages:
        stage = names[name] + (f" ({SIMULATED})" if simulated and name.startswith(SIMULATED_STAGES) else "")
        _add_ceiling(figure, stage, name, measured[name], limit)
        rate = measured[name].images_per_second
        labels[stage] = f"{stage}  <b>{rate:,.0f}{' →' if rate > limit else ''}</b>"
    title = "Images per second of each stage alone"
    if diagnosis.is_judged:
        title += f"; lines: measured {diagnosis.measured:,.0f} (solid), expected {diagnosis.expected:,.0f} (dashed)"
        for rate, dash in ((diagnosis.measured, "solid"), (diagnosis.expected, "dash")):
            figure.add_vline(
                rate, opacity=0.7, layer="below", line={"color": COLOURS["wait"], "width": 2, "dash": dash}
            )
    figure.update_layout(layout(title=title, simulated=simulated))
    name_rows(figure, labels)
    return figure.update_xaxes(title_text="images/s", range=[0, limit * 1.02])


def _add_ceiling(figure: go.Figure, stage: str, name: str, ceiling: Ceiling, limit: float) -> None:
    _, low, high, sure, num = ceiling.estimate
    rate = ceiling.images_per_second
    whisker = {
        "type": "data", "symmetric": False, "array": [max(0.0, high - rate)], "arrayminus": [max(0.0, rate - low)],
        "width": 4, "thickness": 1.5, "color": COLOURS["full"],
    }  # fmt: skip
    figure.add_bar(
        x=[min(rate, limit)], y=[stage], orientation="h", marker_color=colour(name),
        opacity=0.35 if rate > limit else 0.55 if name == "decode_one" else 0.9,
        error_x=None if rate > limit or num == 1 else whisker,
        hovertext=[f"{stage}<br>{rate:,.0f} images/s, {low:,.0f} to {high:,.0f} ({sure:.0%}, {num} windows)"],
        hoverinfo="text",
    )  # fmt: skip


def waterfall(diagnosis: Diagnosis) -> go.Figure:
    """The parts of a step in ms, from the GPU alone to the full run; the last bar is the sum of the parts."""
    *parts, full_step = diagnosis.waterfall
    starts = np.concatenate([[0.0], np.cumsum([part.seconds for part in parts])])[:-1]
    figure, labels = go.Figure(), dict[str, str]()
    for step, start in zip([*parts, full_step], [*starts, 0.0], strict=True):
        milliseconds, name = step.seconds * 1e3, escaped(step.name)
        labels[name] = f"{name}  <b>{'+' if start and step.seconds >= 0 else ''}{milliseconds:,.1f} ms</b>"
        figure.add_bar(
            x=[milliseconds], y=[name], base=[start * 1e3], orientation="h",
            marker_color=COLOURS["full"] if step is full_step else part_colour(step.name),
            marker_pattern_shape="/" if milliseconds < 0 else "",
            hovertext=[f"{name}: {milliseconds:,.2f} ms"], hoverinfo="text",
        )  # fmt: skip
    simulated = diagnosis.measurements.simulated is not None
    figure.update_layout(layout(title="The parts of one step", simulated=simulated))
    name_rows(figure, labels)
    return figure.update_xaxes(title_text="ms", rangemode="tozero")


_WORDS = {
    "callback": "full", "fetch": "wait", "reading": "storage", "contention": "contention", "copy": "copy", "gpu": "gpu",
    "step": "gpu", "check": "storage", "log": "contention",
}  # fmt: skip
"""Word in the name of a part of a step -> stage whose colour the part has; the first match counts."""


def part_colour(name: str) -> str:
    return COLOURS[next((kind for word, kind in _WORDS.items() if word in name.lower()), "loader")]


SMALL_PHASE = 0.01
"""Phases below this share of a step are drawn together, since a run has a phase for each of a dozen callbacks."""


def phases(diagnosis: Diagnosis) -> go.Figure:
    """A bar for each phase of the main process in one step of the full run, and one for all short phases."""
    figure, labels = go.Figure(), dict[str, str]()
    measured = diagnosis.measurements.phases
    least = SMALL_PHASE * sum(measured.values())
    drawn = {name: seconds for name, seconds in measured.items() if seconds >= least}
    if small := [seconds for seconds in measured.values() if seconds < least]:
        drawn[f"{len(small)} others"] = sum(small)
    for name, seconds in drawn.items():
        labels[escaped(name)] = f"{escaped(name)}  <b>{seconds * 1e3:,.1f} ms</b>"
        figure.add_bar(
            x=[seconds * 1e3], y=[escaped(name)], orientation="h", marker_color=part_colour(name), hoverinfo="x"
        )
    simulated = diagnosis.measurements.simulated is not None
    title = "The main process in one step of the full run"
    figure.update_layout(layout(title=title, simulated=simulated))
    name_rows(figure, labels)
    return figure.update_xaxes(title_text="ms", rangemode="tozero")


def histogram(steps: Steps, *, simulated: bool = False) -> go.Figure:
    """Histogram of step times in ms, with p50 and p99."""
    milliseconds = np.asarray(steps.seconds) * 1e3
    counts, edges = np.histogram(milliseconds, bins=NUM_BINS)
    percentiles = dict(zip(("p50", "p99"), np.percentile(milliseconds, (50, 99)).tolist(), strict=True))
    figure = go.Figure()
    figure.add_bar(
        x=(edges[:-1] + edges[1:]) / 2, y=counts / counts.sum(), width=np.diff(edges), opacity=0.85,
        marker_color=COLOURS["loader"], hovertemplate="%{x:.1f} ms: %{y:.1%}<extra></extra>",
    )  # fmt: skip
    for level, (name, place) in enumerate(percentiles.items()):
        figure.add_vline(place, opacity=1, line={"color": COLOURS["loader"], "width": 1.5, "dash": "dot"})
        figure.add_annotation(
            x=place, y=1 - 0.09 * level, yref="paper", xanchor="left", showarrow=False, text=f" {name}"
        )
    texts = ", ".join(f"{name} {place:,.1f} ms" for name, place in percentiles.items())
    title = f"Step times: {steps}, {texts}"
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
        figure.add_hline(needed, opacity=1, line={"color": COLOURS["gpu"], "width": 1.5, "dash": "dash"})
        words = "rate of the GPU" + (f" ({SIMULATED})" if diagnosis.measurements.simulated else "")
        figure.add_annotation(
            x=0, xref="paper", xanchor="left", y=needed, yanchor="bottom", text=words, showarrow=False, font_size=12
        )
    figure.update_layout(layout(height=280, title=title))
    figure.update_xaxes(title_text=setting)
    return figure.update_yaxes(title_text="images/s", range=[0, 1.12 * max([*ys, needed])])


RATES = {
    "images/s": {"throughput/images_per_second": "full"},
    "data wait, share": {"throughput/data_wait_fraction": "wait"},
    "GPU busy, %": {"gpu/utilization_percent": "gpu"},
    "accelerator busy": {"rehearsal/accelerator_utilization": "gpu"},
}
LEARNING = {
    "loss": {"train/loss": "loader", "val/loss": "decode"},
    "top-1": {"train/acc1": "loader", "val/acc1": "decode"},
    "learning rate": {"lr": "full"},
}
"""Label of an axis -> columns of metrics.csv, each with the stage whose colour it has."""


def over_steps(
    rows: Sequence[tuple[int, Mapping[str, float]]],
    axes: Mapping[str, Mapping[str, str]],
    title: str,
    *,
    simulated: bool = False,
) -> go.Figure:
    """Columns of metrics.csv over the steps. Axes without a value are left out."""
    logged = {name for _, row in rows for name in row}
    known = {label: columns for label, columns in axes.items() if logged & columns.keys()}
    figure = make_subplots(rows=max(1, len(known)), cols=1, shared_xaxes=True, vertical_spacing=0.06)
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
    return figure.update_xaxes(title_text="step", row=max(1, len(known)), col=1)
