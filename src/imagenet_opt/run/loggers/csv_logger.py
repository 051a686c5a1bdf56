"""metrics.csv: every logged number of a run, one row per step, written to disk at once."""

import csv
import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from imagenet_opt.atomic_file import replacing
from imagenet_opt.run.loggers.run_logger import RunLogger
from imagenet_opt.run.numbers import METRICS, read_table

log = logging.getLogger(__name__)


class MetricsCsv(RunLogger, Logger):
    """Writes `folder`/metrics.csv, or appends to it.

    Consecutive rows of the same step are merged. A new column rewrites the file atomically. Numbers are written with
    all digits, so that two runs can be compared bit by bit; the cell of a missing metric is empty.
    While the disk is full, rows wait in memory until a write succeeds.

    Raises RunFolderError when an existing file cannot be read.
    """

    name = "csv"
    version = ""

    def __init__(self, *, folder: str) -> None:
        super().__init__()
        self.path = Path(folder) / METRICS
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._columns, self._rows, is_intact = read_table(self.path)
        self._behind = False  # rows wait in memory
        if not is_intact and rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            self._write(None)  # otherwise the next row would be appended to the truncated row

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the run folder contains the configuration."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if step is None:
            step = int(self._rows[-1]["step"]) if self._rows else 0
        row = {"step": str(step)} | {name: _text(value) for name, value in metrics.items()}
        same_step = bool(self._rows) and self._rows[-1]["step"] == row["step"]
        if same_step:
            self._rows[-1] |= row
        else:
            self._rows.append(row)
        new = [name for name in dict.fromkeys(("step", "epoch", *row)) if name not in self._columns]
        self._columns += new
        self._write(None if same_step or new else row)

    @rank_zero_only
    def truncate_after(self, step: int) -> None:
        """Drop the rows of later steps, which a resumed run logs again."""
        kept = [row for row in self._rows if int(row["step"]) <= step]
        if dropped := len(self._rows) - len(kept):
            rows = "the row" if dropped == 1 else f"the {dropped} rows"
            log.info(f"metrics.csv: {rows} of steps after the checkpoint will be logged again")
            self._rows = kept
            self._write(None)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self._behind:
            self._write(None)

    def _write(self, row: dict[str, str] | None) -> None:
        """Append `row`; rewrite all rows when `row` is None or rows wait in memory."""
        try:
            if row is None or self._behind:
                with replacing(self.path, sync=True) as fresh, fresh.open("w", newline="") as file:
                    writer = csv.DictWriter(file, self._columns, lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(self._rows)
            else:
                with self.path.open("ab") as file:  # numbers need no quotes
                    file.write((",".join([row.get(name, "") for name in self._columns]) + "\n").encode())
        except OSError as error:
            if not self._behind:
                log.warning(f"cannot write {self.path} ({error}); training continues, and rows wait in memory")
            self._behind = True
        else:
            if self._behind:
                log.info(f"{self.path} can be written again; no row is missing")
            self._behind = False


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
