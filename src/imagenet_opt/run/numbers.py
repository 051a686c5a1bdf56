"""The rows of metrics.csv. Imports neither torch nor Lightning, so that a view of a run starts fast."""

import csv
import re
from contextlib import suppress
from pathlib import Path

from imagenet_opt.errors import RunFolderError

METRICS = "metrics.csv"
IMAGES_PER_SECOND = "throughput/images_per_second"
BEST_EPOCH = "best/epoch"
_STEP = re.compile(r"[0-9]{1,18}")


def mode_of(metric: str) -> str:
    """ "min" for a loss, whose smaller values are better, else "max"."""
    return "min" if metric.endswith("loss") else "max"


def read_rows(path: Path) -> list[tuple[int, dict[str, float]]]:
    """The complete rows of a metrics.csv, as (step, metrics of the row); damaged cells are left out."""
    _, rows, _ = read_table(path)
    numbers = [(int(row.pop("step")), {name: _number(text) for name, text in row.items()}) for row in rows]
    return [(step, {name: value for name, value in row.items() if value is not None}) for step, row in numbers]


def _number(text: str) -> float | None:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None


def _cells(line: str) -> list[str]:
    """The cells of a line; empty where csv rejects the line, as for a field over its size limit."""
    try:
        return next(csv.reader([line]))
    except csv.Error:
        return []


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]], bool]:
    """Columns, complete rows, and whether the file has no other rows; rows damaged by a crash are left out."""
    if not path.exists():
        return [], [], True
    try:
        lines = path.read_text(errors="replace").splitlines(keepends=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot read {path} ({error}); repair it, or choose another folder with hydra.run.dir"
        ) from error
    cells = [row for line in lines if line.endswith("\n") and (row := _cells(line))]
    if not cells or "step" not in cells[0]:
        return [], [], not lines
    rows = [dict(zip(cells[0], row, strict=True)) for row in cells[1:] if len(row) == len(cells[0])]
    rows = [row for row in rows if _STEP.fullmatch(row["step"])]
    return cells[0], rows, len(rows) + 1 == len(lines)
