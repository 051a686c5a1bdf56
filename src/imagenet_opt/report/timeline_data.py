"""The data of a timeline figure, compressed for the page; timeline.js draws the visible part."""

import base64
import zlib
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from imagenet_opt.display.theme import COLOURS
from imagenet_opt.measure.telemetry.timeline import INTERVAL_SECONDS, Timeline
from imagenet_opt.report.downsample import min_max
from imagenet_opt.report.timeline_chart import ACROSS, LANES, MOST_KEPT, ends

MOST_POINTS = 4000
"""Points drawn at a time for a line or a kind of event: 13 minutes of samples without downsampling."""
MOST_BANDS = 300
"""Number of the longest visible waits that are shaded through all rows."""
MOST_TIMES = 1500
"""Columns of the heat map of the cores; a column shows each core's maximum in a stretch of time."""
_COARSE = "Minimum and maximum per {} s"
"""Title when there are too many samples to draw each of them."""
_NO_CORE = 255
_CORE_PERCENT = 5
"""Resolution of a core's percent in the page; the kernel's clock has steps of 10 percent per sample."""

Arrays = list[tuple[str, str]]
"""Type (f or B for float32 or uint8) and content of each array, compressed with zlib, in base64."""


def take_data(figure: go.Figure, recording: Timeline) -> dict[str, Any]:
    """Remove the data from the traces of `timeline(recording)`, and return the data with which timeline.js draws them.

    `traces`: for each trace the numbers of its arrays. `clock`: number of the array with the times of the samples.
    """
    arrays: Arrays = []
    traces = [_take_trace(trace, arrays) for trace in figure.data]
    times = recording.samples.get("unix_seconds", np.zeros(0)) - ends(recording)[0]
    interval = float(np.median(np.diff(times))) if len(times) > 1 else INTERVAL_SECONDS
    stretch = interval * max(1.0, len(times) / MOST_KEPT)
    finest = f"Every {1e3 * stretch:.0f} ms" if len(times) <= MOST_KEPT else _COARSE.format(f"{2 * stretch:.1f}")
    return {
        "traces": traces,
        "clock": _add(arrays, min_max(times, times, most=MOST_KEPT)[0], "f"),
        "seconds": stretch,
        "title": figure.layout.title.text,
        "finest": finest,
        "coarse": _COARSE,
        "band": ACROSS | {"type": "rect", "fillcolor": COLOURS["wait"], "opacity": 0.12, "line_width": 0},
        "noCore": _NO_CORE,
        "mostPoints": MOST_POINTS,
        "mostTimes": MOST_TIMES,
        "mostBands": MOST_BANDS,
        "arrays": arrays,
    }


def _take_trace(trace: Any, arrays: Arrays) -> dict[str, Any]:
    kept: dict[str, Any] = {"x": _add(arrays, trace.x, "f")}
    if trace.type == "heatmap":
        levels = np.where(np.isnan(trace.z), _NO_CORE, np.round(np.nan_to_num(trace.z) / _CORE_PERCENT) * _CORE_PERCENT)
        kept |= {"kind": "cores", "z": _add(arrays, levels, "B"), "num": len(levels)}
        trace.update(x=None, z=None)
    elif trace.name in LANES:
        kept |= {"kind": "lane", "y": float(trace.y[0])}
        trace.update(x=None, y=None)
    else:
        kept |= {"kind": "line", "y": _add(arrays, trace.y, "f")}
        trace.update(x=None, y=None)
    return kept


def _add(arrays: Arrays, values: ArrayLike, kind: str) -> int:
    """Append an array unless an equal array is there, and return its number."""
    content = np.ascontiguousarray(values, f"<{kind}").tobytes()
    packed = kind, base64.b64encode(zlib.compress(content, 9)).decode()
    if packed not in arrays:
        arrays.append(packed)
    return arrays.index(packed)
