"""The tables of a sweep: its jobs, and its settings if it has several seeds; as CSV and on the terminal."""

import csv
import io
from pathlib import Path
from textwrap import shorten

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.display.printable import printable
from imagenet_opt.display.table import Column, Table
from imagenet_opt.display.terminal_table import least_width, print_tables, terminal, terminal_table
from imagenet_opt.run.numbers import IMAGES_PER_SECOND
from imagenet_opt.sweep.repetitions import repetitions
from imagenet_opt.sweep.rows import (
    FEW_STEPS,
    NONE,
    PREFETCH,
    WORKERS,
    Row,
    needed_steps,
    outcome,
    parameters,
    varying,
)

CSV = "sweep.csv"
HTML = "sweep.html"
METRICS = {
    "throughput/it_per_second": ("it/s", "{:.2f}"),
    IMAGES_PER_SECOND: ("images/s", "{:,.0f}"),
    "val/acc1": ("acc1", "{:.1%}"),
    "throughput/data_wait_fraction": ("data wait", "{:.1%}"),
    "gpu/utilization_percent": ("GPU busy", "{:.0f} %"),
    "memory/peak_gib": ("memory GiB", "{:.1f}"),
    WORKERS: ("workers used", "{:.0f}"),
    PREFETCH: ("prefetch used", "{:.0f}"),
}
"""Columns of every table, if a job has a value: key of summary.json -> heading, format."""


def columns_of(rows: list[Row]) -> tuple[dict[str, str], list[str]]:
    """Headings of the parameters that vary, by name, and the metrics that a job has."""
    names = varying(rows)
    last_parts = [name.rpartition(".")[2] for name in names]
    headings = last_parts if len(set(last_parts)) == len(names) else names
    metrics = [key for key in METRICS if any(show(row, key) != NONE for row in rows)]
    return dict(zip(names, headings, strict=True)), metrics


def title_of(sweep_dir: Path) -> str:
    """The folder's name, which by default begins with "sweep"."""
    return sweep_dir.name if sweep_dir.name.startswith("sweep") else f"sweep {sweep_dir.name}"


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
    """Print the sweep with its fastest jobs in bold, then the failures and where the files are."""
    console, repeated = terminal(), repetitions(rows)
    names, metrics = columns_of(rows)
    table = _terminal_rows(rows, names, metrics, title_of(sweep_dir))
    while metrics and least_width(table) > console.width:
        table = _terminal_rows(rows, names, metrics := metrics[:-1], title_of(sweep_dir))
    styles = ["bold" if row in repeated.best else "red" if row["status"] != "ok" else None for row in rows]
    console.print(terminal_table(table, console.width, styles))
    if few := [row for row in rows if outcome(row).endswith(FEW_STEPS)]:
        console.print(f"{FEW_STEPS}: raise trainer.max_steps to at least {max(map(needed_steps, few))}", soft_wrap=True)
    if repeated.table is not None:
        print_tables([repeated.table])
    elif repeated.best and len(rows) > 1:
        console.print(f"job {repeated.best[0]['job']} was the fastest. {repeated.sentence}", soft_wrap=True)
    for row in rows:
        if row["error"]:
            console.print(f"job {row['job']}: {printable(shorten(row['error'], 200))}", style="red", soft_wrap=True)
    for file in (CSV, HTML):
        console.print(printable(str(sweep_dir / file)), soft_wrap=True)


def _terminal_rows(rows: list[Row], names: dict[str, str], metrics: list[str], title: str) -> Table:
    """names: headings by parameter. metrics: those that fit; the page and the CSV file have all."""
    titles = ("job", *names.values(), *(METRICS[key][0] for key in metrics), "status")
    cells = [
        (
            str(row["job"]),
            *(row["parameters"].get(name, NONE) for name in names),
            *(show(row, key) for key in metrics),
            outcome(row),
        )
        for row in rows
    ]
    return Table(title, tuple(Column(title) for title in titles), tuple(cells))
