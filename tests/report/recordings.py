"""A timeline with chosen samples and events."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from imagenet_opt.measure.telemetry.timeline import KINDS, ChunkWriter, Timeline, read_timeline


def recorded(
    folder: Path, times: np.ndarray, events: Sequence[tuple[float, float, str]] = (), **columns: np.ndarray
) -> Timeline:
    """Written to `folder`/timeline and read. events: begin, end and kind."""
    writer = ChunkWriter(folder / "timeline")
    writer.add("samples", {"unix_seconds": times} | columns)
    begin, end = (np.array([event[i] for event in events], float) for i in (0, 1))
    kinds = np.array([KINDS.index(kind) for *_, kind in events], np.uint8)
    writer.add("events", {"begin_unix_seconds": begin, "end_unix_seconds": end, "kind": kinds})
    writer.flush()
    return read_timeline(folder / "timeline")
