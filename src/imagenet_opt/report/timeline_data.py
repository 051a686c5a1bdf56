"""All samples of a timeline, embedded in the page; timeline.js draws the visible part."""

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.display.theme import layout
from imagenet_opt.measure.telemetry.timeline import INTERVAL_SECONDS, Timeline
from imagenet_opt.report.downsample import min_max
from imagenet_opt.report.timeline_chart import (
    BAND,
    COARSE,
    MOST_BANDS,
    MOST_POINTS,
    MOST_TIMES,
    Line,
    cores_thinned,
    longest,
    resolution,
    shown_lanes,
    shown_lines,
    start_seconds,
    with_gaps,
)

MOST_KEPT = 40_000
"""Samples of a line in the page: all samples of an hour; of a longer run the minimum and maximum of each stretch."""
_NONE = 65535
"""Level that stands for nan among levels of 16 bits."""
_NO_CORE = 255
_CORE_PERCENT = 5
"""Resolution of a core's percent in the page; the kernel's clock has steps of 10 percent per sample."""
_ALIGNED_BYTES = 4


class _Arrays:
    """Concatenates arrays; equal arrays are stored once."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int, int]] = []
        self._numbers: dict[bytes, int] = {}
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def add(self, array: NDArray[Any], kind: str) -> int:
        """Store an array and return its number. kind: f, H or B for float32, uint16 or uint8, little-endian."""
        data = np.ascontiguousarray(array, f"<{kind}").tobytes()
        key = kind.encode() + data
        if key not in self._numbers:
            self._numbers[key] = len(self.places)
            self.places.append((kind, self._num_bytes, array.size))
            self._parts.append(data + bytes(-len(data) % _ALIGNED_BYTES))
            self._num_bytes += len(self._parts[-1])
        return self._numbers[key]

    def packed(self) -> str:
        return base64.b64encode(zlib.compress(b"".join(self._parts), 9)).decode()


def pack(recording: Timeline, *, simulated: bool = False) -> dict[str, Any]:
    """`samples`: all arrays, compressed with zlib, in base64; `plan`: the offset and the meaning of each array.

    Times are seconds since the start. The values of a line are quantized to 1/65534 of their range: low + step x level.
    """
    arrays, start = _Arrays(), start_seconds(recording)
    shown = [line for row in shown_lines(recording).values() for line in row]
    lines = {line.label: _line(recording, line, start, arrays) for line in shown}
    num = len(recording.samples.get("unix_seconds", ()))
    plan = {
        "lines": lines,
        "lanes": {kind: _lane(recording, kind, start, arrays) | {"y": y} for kind, y in shown_lanes(recording).items()},
        "cores": _cores(recording, start, arrays),
        "clock": next((lines[line.label]["x"] for line in shown if line.table == "samples"), None),
        "seconds": INTERVAL_SECONDS * max(1.0, num / MOST_KEPT),
        "title": layout(height=0, title="{}", simulated=simulated)["title"]["text"],
        "finest": resolution(num, MOST_KEPT),
        "coarse": COARSE,
        "band": BAND,
        "none": _NONE,
        "noCore": _NO_CORE,
        "mostPoints": MOST_POINTS,
        "mostTimes": MOST_TIMES,
        "mostBands": MOST_BANDS,
        "arrays": arrays.places,
    }
    return {"plan": plan, "samples": arrays.packed()}


def _line(recording: Timeline, line: Line, start: float, arrays: _Arrays) -> dict[str, float]:
    table = getattr(recording, line.table)
    xs, ys = min_max(*with_gaps(table["unix_seconds"] - start, table[line.column]), most=MOST_KEPT)
    levels, low, step = _quantised(ys)
    return {"x": arrays.add(xs, "f"), "y": arrays.add(levels, "H"), "low": low, "step": step}


def _lane(recording: Timeline, kind: str, start: float, arrays: _Arrays) -> dict[str, int]:
    begins, ends = (longest(recording.spans(kind), MOST_KEPT) - start).T
    return {"begin": arrays.add(begins, "f"), "end": arrays.add(ends, "f")}


def _cores(recording: Timeline, start: float, arrays: _Arrays) -> dict[str, int] | None:
    """Arrays of the heat map, with a row for each core; None without samples of cores."""
    times, busy = cores_thinned(recording, start, MOST_KEPT)
    if not busy.size:
        return None
    levels = np.where(np.isnan(busy), _NO_CORE, np.round(np.nan_to_num(busy) / _CORE_PERCENT) * _CORE_PERCENT)
    return {"x": arrays.add(times, "f"), "z": arrays.add(levels, "B"), "num": len(busy)}


def _quantised(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, float]:
    """Levels of 16 bits, the value of level 0, and the difference between two levels."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    step = (high - low) / (_NONE - 1) or 1.0
    return np.where(np.isnan(values), _NONE, np.round((np.nan_to_num(values) - low) / step)), low, step
