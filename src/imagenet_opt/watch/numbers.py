"""The newest numbers of a run, for the page and for the terminal."""

import math
from collections.abc import Mapping, Sequence

from imagenet_opt.watch.run_folder import Snapshot

_SHAPES = {
    "throughput/it_per_second": ("it/s", "{:.2f}"),
    "throughput/images_per_second": ("images/s", "{:,.0f}"),
    "throughput/data_wait_fraction": ("data wait", "{:.1%}"),
    "gpu/utilization_percent": ("GPU busy", "{:.0f} %"),
    "rehearsal/accelerator_utilization": ("accelerator busy (simulated)", "{:.0%}"),
    "host/cpu_percent": ("CPU busy", "{:.0f} %"),
    "train/loss": ("loss", "{:.3f}"),
    "train/acc1": ("top-1", "{:.1%}"),
    "val/loss": ("validation loss", "{:.3f}"),
    "val/acc1": ("validation top-1", "{:.1%}"),
    "lr": ("learning rate", "{:.3g}"),
}
"""Column of metrics.csv -> label, format of its value."""


def facts(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Labels and texts: where the run is, the time left, and the newest value of each known column."""
    if not snapshot.rows:
        return [("step", "no row yet: the first comes after trainer.log_every_n_steps steps")]
    step, _ = snapshot.rows[-1]
    place = [("step", f"{step + 1:,}"), ("epoch", snapshot.progress.get("epoch", ""))]
    if snapshot.ending is None:
        place.append(("time left", snapshot.progress.get("left", "")))
    values = newest(snapshot.rows)
    numbers = [(label, shape.format(values[key])) for key, (label, shape) in _SHAPES.items() if key in values]
    return [(label, text) for label, text in place if text] + numbers


def newest(rows: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """The last finite value of each column: a row has only the columns that were logged at its step."""
    values: dict[str, float] = {}
    for _, row in rows:
        values |= {key: value for key, value in row.items() if math.isfinite(value)}
    return values


def series(rows: Sequence[tuple[int, Mapping[str, float]]], column: str) -> tuple[list[int], list[float]]:
    """Steps and finite values of a column."""
    known = [(step, row[column]) for step, row in rows if column in row and math.isfinite(row[column])]
    return [step for step, _ in known], [value for _, value in known]
