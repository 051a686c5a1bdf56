"""All samples of a timeline within the page, from which timeline.js draws what is visible."""

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
"""Samples of a line: an hour is kept whole, of a longer run the least and the greatest of each stretch."""
_NONE = 65535
"""Stands for nan among levels of 16 bits."""
_NO_CORE = 255
_CORE_PERCENT = 5
"""Steps in which a core's percent is kept: of the kernel's clock, a sample has steps of 10."""
_ALIGNED_BYTES = 4


class _Arrays:
    """Arrays one after the other; the same one is kept once."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int, int]] = []
        self._numbers: dict[bytes, int] = {}
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def add(self, array: NDArray[Any], kind: str) -> int:
        """Its number. kind: f, H or B: float32, uint16 or uint8, lowest byte first."""
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


def pack(found: Timeline, *, simulated: bool = False) -> dict[str, Any]:
    """`samples`: base64 of zlib's stream of all arrays; `plan`: where each is, and what is drawn of it.

    Times are seconds since the start. A line's values are low + step x level, to 1/65534 of their range.
    """
    arrays, start = _Arrays(), start_seconds(found)
    shown = [line for row in shown_lines(found).values() for line in row]
    lines = {line.label: _line(found, line, start, arrays) for line in shown}
    num = len(found.samples.get("unix_seconds", ()))
    plan = {
        "lines": lines,
        "lanes": {kind: _lane(found, kind, start, arrays) | {"y": y} for kind, y in shown_lanes(found).items()},
        "cores": _cores(found, start, arrays),
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


def _line(found: Timeline, line: Line, start: float, arrays: _Arrays) -> dict[str, float]:
    table = getattr(found, line.table)
    xs, ys = min_max(*with_gaps(table["unix_seconds"] - start, table[line.column]), most=MOST_KEPT)
    levels, low, step = _quantised(ys)
    return {"x": arrays.add(xs, "f"), "y": arrays.add(levels, "H"), "low": low, "step": step}


def _lane(found: Timeline, kind: str, start: float, arrays: _Arrays) -> dict[str, int]:
    begins, ends = (longest(found.spans(kind), MOST_KEPT) - start).T
    return {"begin": arrays.add(begins, "f"), "end": arrays.add(ends, "f")}


def _cores(found: Timeline, start: float, arrays: _Arrays) -> dict[str, int] | None:
    """A row for each core."""
    times, busy = cores_thinned(found, start, MOST_KEPT)
    if not busy.size:
        return None
    levels = np.where(np.isnan(busy), _NO_CORE, np.round(np.nan_to_num(busy) / _CORE_PERCENT) * _CORE_PERCENT)
    return {"x": arrays.add(times, "f"), "z": arrays.add(levels, "B"), "num": len(busy)}


def _quantised(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, float]:
    """Levels of 16 bits, what the lowest stands for, and the step from each to the next."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    step = (high - low) / (_NONE - 1) or 1.0
    return np.where(np.isnan(values), _NONE, np.round((np.nan_to_num(values) - low) / step)), low, step
