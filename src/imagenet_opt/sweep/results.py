"""The results of a sweep on the terminal, as CSV and as a page."""

import csv
import io
import math
import shlex
from pathlib import Path
from textwrap import shorten

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.config.overrides import key_of
from imagenet_opt.display.printable import printable
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table
from imagenet_opt.display.terminal_table import print_tables
from imagenet_opt.run.numbers import IMAGES_PER_SECOND
from imagenet_opt.sweep.rows import (
    FEW_STEPS,
    PREFETCH,
    WORKERS,
    Row,
    best,
    needed_steps,
    outcome,
    parameters,
    speed,
    varying,
)
from imagenet_opt.training.preempted import command

CSV, HTML = "sweep.csv", "sweep.html"
METRICS = {
    "throughput/it_per_second": Column("it/s", "{:.2f}"),
    IMAGES_PER_SECOND: Column("images/s", "{:,.0f}"),
    "val/acc1": Column("acc1", "{:.1%}"),
    "throughput/data_wait_fraction": Column("data wait", "{:.1%}"),
    "gpu/utilization_percent": Column("GPU busy", "{:.0f} %"),
    "memory/peak_gib": Column("memory GiB", "{:.1f}"),
    WORKERS: Column("workers used", "{:.0f}"),
    PREFETCH: Column("prefetch used", "{:.0f}"),
}
"""Columns, if a job has a value, by key of summary.json."""
_ONE_RUN_EACH = " Speeds vary by chance: imagenet-opt study decides between settings that are close."


def write_csv(rows: list[Row], sweep_dir: Path) -> None:
    """Write sweep.csv: job, parameters, numbers under their keys of summary.json, outcome."""
    metrics = sorted({key for row in rows for key in row.summary})
    ending = ("status", "seconds", "exit_code", "error")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["job", *parameters(rows), *metrics, *ending], extrasaction="ignore")
    writer.writeheader()
    writer.writerows({**row.model_dump(), **row.parameters, **row.summary} for row in rows)
    write_atomically(sweep_dir / CSV, text.getvalue())


def table_of(rows: list[Row]) -> Table:
    """The jobs, with what varies between them, and the fastest."""
    names = varying(rows)
    last_parts = [name.rpartition(".")[2] for name in names]
    headings = last_parts if len(set(last_parts)) == len(names) else names
    metrics = {key: column for key, column in METRICS.items() if any(_number(row, key) is not None for row in rows)}
    columns = [Column("job"), *map(Column, headings), *metrics.values(), Column("status")]
    cells: list[tuple[Cell, ...]] = []
    for row in rows:
        values = [*(row.parameters.get(name) for name in names), *(_number(row, key) for key in metrics)]
        cells.append((str(row.job), *values, outcome(row)))
    notes = [f"Job {row.job}: {shorten(row.error, 200)}" for row in rows if row.error]
    if few := [row for row in rows if outcome(row).endswith(FEW_STEPS)]:
        notes.append(f"{FEW_STEPS}: raise trainer.max_steps to at least {max(map(needed_steps, few))}")
    if (fastest := best(rows)) is None:
        return Table("jobs", tuple(columns), tuple(cells), tuple(notes), finding="No job has measured a speed.")
    finding = f"Job {fastest.job} was the fastest of {len(rows)}, with {speed(fastest):,.0f} images/s."
    bars = {
        f"{row.job}: {' '.join(f'{name}={row.parameters.get(name)}' for name in names)}": speed(row)
        for row in rows
        if not math.isnan(speed(row))
    }
    series = Series("", tuple(bars), tuple(bars.values()))
    plot = Plot("Images per second of each job", "", "images/s", "bars", (series,))
    finding += _ONE_RUN_EACH * (len(rows) > 1)
    return Table("jobs", tuple(columns), tuple(cells), tuple(notes), (plot,), finding=finding)


def _number(row: Row, key: str) -> Cell:
    value = row.summary.get(key)
    return value if isinstance(value, int | float) else None


def write_page(rows: list[Row], sweep_dir: Path) -> None:
    from imagenet_opt.display.page import page_of_tables  # plotly only in the process that draws

    names, fastest = varying(rows), best(rows)
    chosen = [] if fastest is None else [word for word in fastest.overrides if key_of(word) in names]
    text = page_of_tables(
        f"Sweep {sweep_dir.name}",
        "",
        [table_of(rows)],
        about={"folder": str(sweep_dir)},
        command=command("hydra.sweep.dir", sweep_dir),
        commands=[shlex.join(chosen)] if chosen else [],
    )
    write_atomically(sweep_dir / HTML, text)


def print_results(rows: list[Row], sweep_dir: Path) -> None:
    """Print the table and where the files are."""
    console = print_tables([table_of(rows)])
    for file in (CSV, HTML):
        console.print(printable(str(sweep_dir / file)), soft_wrap=True)
