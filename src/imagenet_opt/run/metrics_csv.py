"""metrics.csv: every logged number of a run, a row a step, on disk as soon as it is logged."""

import csv
import logging
import os
from argparse import Namespace
from pathlib import Path
from typing import Any, TextIO

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

log = logging.getLogger(__name__)

FILE = "metrics.csv"


class MetricsCsv(Logger):
    """Writes `folder`/metrics.csv; an existing file is continued.

    Rows of the same step that follow each other become one. A new column rewrites the file in one step. Numbers
    are written in full, so that two runs can be compared bit by bit; a metric that a row lacks is left empty.
    """

    def __init__(self, *, folder: str) -> None:
        super().__init__()
        self.path = Path(folder) / FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._columns, self._rows = _read(self.path)
        self._tidy()

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    @property
    def log_dir(self) -> str:
        return self.save_dir

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the run folder holds the whole configuration."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if step is None:
            step = int(self._rows[-1]["step"]) if self._rows else 0
        row = {"step": str(step)} | {name: _text(value) for name, value in metrics.items()}
        again = bool(self._rows) and self._rows[-1]["step"] == row["step"]
        if again:
            self._rows[-1] |= row
        else:
            self._rows.append(row)
        new = [name for name in dict.fromkeys(("step", "epoch", *row)) if name not in self._columns]
        self._columns += new
        if again or new:
            self._rewrite()
        else:
            with self.path.open("a", newline="") as file:
                self._writer(file).writerow(row)

    @rank_zero_only
    def truncate_after(self, step: int) -> None:
        """Drop the rows of later steps, which a resumed run logs again."""
        kept = [row for row in self._rows if int(row["step"]) <= step]
        if dropped := len(self._rows) - len(kept):
            log.info(f"metrics.csv: {dropped} rows after step {step} are dropped, to be logged again")
            self._rows = kept
            self._rewrite()

    @rank_zero_only
    def _tidy(self) -> None:
        """A crash may have cut the last row short; the next one must not be glued to it."""
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            self._rewrite()

    def _rewrite(self) -> None:
        fresh = self.path.with_suffix(".new")
        with fresh.open("w", newline="") as file:
            writer = self._writer(file)
            writer.writeheader()
            writer.writerows(self._rows)
        os.replace(fresh, self.path)

    def _writer(self, file: TextIO) -> "csv.DictWriter[str]":
        return csv.DictWriter(file, self._columns, lineterminator="\n")


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and whole rows; a last row cut short by a crash is left out."""
    if not path.exists():
        return [], []
    with path.open(newline="") as file:
        lines = [line for line in file if line.endswith("\n")]
    reader = csv.DictReader(lines)
    return list(reader.fieldnames or []), list(reader)
