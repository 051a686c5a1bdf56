"""The rows of a sweep: read from the job folders, written as CSV, printed on the terminal."""

import csv
import io
import logging
import math
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, Field, ValidationError

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.display.printable import printable
from imagenet_opt.display.table import Column, Table
from imagenet_opt.display.terminal_table import least_width, terminal, terminal_table
from imagenet_opt.training.summary_file import IMAGES_PER_SECOND, read_summary

log = logging.getLogger(__name__)

JOB = "job.json"
CSV = "sweep.csv"
HTML = "sweep.html"
WORKERS, PREFETCH = "loader/num_workers", "loader/prefetch_factor"
NONE = "-"
FEW_STEPS = "too few steps to trust"
ONE_RUN_EACH = (
    "Each job ran once, and speeds vary by chance: to decide between jobs that are close, measure them with "
    "`imagenet-opt study`."
)
_LEAST_STEPS = 20
"""The first ten steps are not timed."""

METRICS = {
    "throughput/it_per_second": ("it/s", "{:.2f}"),
    IMAGES_PER_SECOND: ("images/s", "{:,.0f}"),
    "throughput/data_wait_fraction": ("data wait", "{:.1%}"),
    "gpu/utilization_percent": ("GPU busy", "{:.0f} %"),
    "memory/peak_gib": ("memory GiB", "{:.1f}"),
    WORKERS: ("workers used", "{:.0f}"),
    PREFETCH: ("prefetch used", "{:.0f}"),
}
"""Columns of every table: key of summary.json -> heading, format."""


class Row(TypedDict):
    """A job. parameters: overrides as typed. status: ok, failed or interrupted. summary: content of summary.json."""

    job: int
    parameters: dict[str, str]
    status: str
    error: str | None
    seconds: float
    exit_code: int
    summary: dict[str, Any]


class _Job(BaseModel):
    """Fields of job.json."""

    job: int = Field(ge=0, lt=2**31)
    overrides: list[str]
    status: Literal["ok", "failed", "interrupted"]
    error: str | None
    seconds: float
    exit_code: int = Field(ge=-(2**31), lt=2**31)


def collect_rows(sweep_dir: Path) -> list[Row]:
    """Read all finished jobs from their folders, by job number. A damaged job.json is reported and left out."""
    rows: list[Row] = []
    for file in sweep_dir.rglob(JOB):
        try:
            job = _Job.model_validate_json(file.read_bytes())
        except ValidationError as error:
            log.warning(f"{file} is damaged, so its job has no row: {error.errors()[0]['msg']}")
            continue
        parts = [override.lstrip("+").partition("=") for override in job.overrides]
        values = {"parameters": {name: value for name, _, value in parts}, "summary": read_summary(file.parent)}
        row: Any = job.model_dump(exclude={"overrides"}) | values
        rows.append(row)
    return sorted(rows, key=lambda row: row["job"])


def parameters(rows: list[Row]) -> list[str]:
    """Names of the parameters of all jobs."""
    return list(dict.fromkeys(name for row in rows for name in row["parameters"]))


def varying(rows: list[Row]) -> list[str]:
    """Names of the parameters whose value is not the same in all jobs."""
    return [name for name in parameters(rows) if len({row["parameters"].get(name) for row in rows}) > 1]


def speed(row: Row) -> float:
    """Images per second; nan for a job that failed or measured no rate."""
    value = row["summary"].get(IMAGES_PER_SECOND)
    return math.nan if row["status"] != "ok" or value is None else float(value)


def needed_steps(row: Row) -> int:
    """Number of steps after which the prefetched batches no longer determine the speed."""
    return _LEAST_STEPS + 2 * int(row["summary"].get(WORKERS, 0) * row["summary"].get(PREFETCH, 0))


def outcome(row: Row) -> str:
    """The status, with a warning if the speed is not reliable."""
    steps = row["summary"].get("steps", math.inf)
    return f"{row['status']}, {FEW_STEPS}" if row["status"] == "ok" and steps < needed_steps(row) else row["status"]


def best(rows: list[Row]) -> Row | None:
    """The job with the most images per second. Jobs with too few steps count only if all jobs have too few."""
    timed = [row for row in rows if not math.isnan(speed(row))]
    return max([row for row in timed if outcome(row) == "ok"] or timed, key=speed, default=None)


def show(row: Row, metric: str) -> str:
    value = row["summary"].get(metric)
    return METRICS[metric][1].format(value) if isinstance(value, int | float) else NONE


def write_csv(rows: list[Row], sweep_dir: Path) -> None:
    """Write sweep.csv: job, parameters, numbers under their keys of summary.json, outcome."""
    metrics = sorted({key for row in rows for key in row["summary"]})
    ending = ("status", "seconds", "exit_code", "error")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["job", *parameters(rows), *metrics, *ending], extrasaction="ignore")
    writer.writeheader()
    writer.writerows({**row, **row["parameters"], **row["summary"]} for row in rows)
    write_atomically(sweep_dir / CSV, text.getvalue())


def print_table(rows: list[Row], sweep_dir: Path) -> None:
    """Print the sweep with its fastest job in bold, then the failures and where the files are."""
    console, winner = terminal(), best(rows)
    metrics = [key for key in METRICS if any(show(row, key) != NONE for row in rows)]
    table = _terminal_rows(rows, metrics, sweep_dir.name)
    while metrics and least_width(table) > console.width:
        table = _terminal_rows(rows, metrics := metrics[:-1], sweep_dir.name)
    styles = ["bold" if row is winner else "red" if row["status"] != "ok" else None for row in rows]
    console.print(terminal_table(table, console.width, styles))
    if few := [row for row in rows if outcome(row).endswith(FEW_STEPS)]:
        console.print(f"{FEW_STEPS}: raise trainer.max_steps to at least {max(map(needed_steps, few))}", soft_wrap=True)
    if winner is not None and len(rows) > 1:
        console.print(f"job {winner['job']} was the fastest. {ONE_RUN_EACH}", soft_wrap=True)
    for row in rows:
        if row["error"]:
            console.print(f"job {row['job']}: {printable(shorten(row['error'], 200))}", style="red", soft_wrap=True)
    for file in (CSV, HTML):
        console.print(printable(str(sweep_dir / file)), soft_wrap=True)


def _terminal_rows(rows: list[Row], metrics: list[str], name: str) -> Table:
    """metrics: those that fit; the page and the CSV file have all."""
    names = varying(rows)
    last_parts = [name.rpartition(".")[2] for name in names]
    headings = last_parts if len(set(last_parts)) == len(names) else names
    titles = ("job", *headings, *(METRICS[key][0] for key in metrics), "status")
    cells = [
        (
            str(row["job"]),
            *(row["parameters"].get(name, NONE) for name in names),
            *(show(row, key) for key in metrics),
            outcome(row),
        )
        for row in rows
    ]
    return Table(f"sweep {name}", tuple(Column(title) for title in titles), tuple(cells))
