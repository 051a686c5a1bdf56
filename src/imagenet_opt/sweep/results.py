"""The results of a sweep on the terminal, as CSV and as a page: its jobs, and its settings if they are repeated."""

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
    ACC1,
    FEW_STEPS,
    PREFETCH,
    WORKERS,
    SweepRow,
    key_to_raise,
    needed_steps,
    outcome,
    parameters,
    setting_of,
    speed,
    varying,
)
from imagenet_opt.sweep.settings import ACCURACY, SEED, SPEED, compared
from imagenet_opt.training.preempted import command

CSV, HTML = "sweep.csv", "sweep.html"
METRICS = {
    "throughput/it_per_second": Column("it/s", "{:.2f}"),
    IMAGES_PER_SECOND: Column("images/s", "{:,.0f}"),
    ACC1: Column("acc1", "{:.1%}"),
    "throughput/data_wait_fraction": Column("data wait", "{:.1%}"),
    "gpu/utilization_percent": Column("GPU busy", "{:.0f} %"),
    "memory/peak_gib": Column("memory GiB", "{:.1f}"),
    WORKERS: Column("workers used", "{:.0f}"),
    PREFETCH: Column("prefetch used", "{:.0f}"),
}
"""Columns, if a job has a value, by number of record.json."""
_ONE_RUN_EACH = (
    f"Jobs differ by chance: to decide between settings that are close, sweep over these with {SEED}=1,2,3,4 before "
    "the other overrides, so that each setting runs four times; for a speed, imagenet-opt study takes less time."
)


def write_csv(rows: list[SweepRow], sweep_dir: Path) -> None:
    """Write sweep.csv: job, parameters, numbers under their keys of record.json, outcome."""
    metrics = sorted({key for row in rows for key in row.summary})
    ending = ("status", "seconds", "exit_code", "error")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["job", *parameters(rows), *metrics, *ending], extrasaction="ignore")
    writer.writeheader()
    writer.writerows({**row.model_dump(), **row.parameters, **row.summary} for row in rows)
    write_atomically(sweep_dir / CSV, text.getvalue())


def tables_of(rows: list[SweepRow]) -> tuple[list[Table], list[list[str]]]:
    """The settings by speed and by accuracy, if they can be compared, and the jobs; and of the best setting, else the
    best job, by each of both, the overrides that vary."""
    tables, findings, chosen = list[Table](), list[str](), list[list[str]]()
    for measure in (SPEED, ACCURACY):
        names = set(filter(measure.depends_on, varying(rows)))
        counted = list(filter(measure.counts, rows))
        if (found := compared(rows, measure)) is not None:
            tables.append(found[0])
        elif names and len(counted) > 1:
            fields = (best := max(counted, key=measure.of)).job, len(counted), measure.of(best)
            findings.append(measure.best.format(*fields))
        else:
            continue
        best = found[1][0] if found else best
        chosen.append([word for word in best.overrides if key_of(word) in names])
    if findings and SEED not in varying(rows):
        findings.append(_ONE_RUN_EACH)
    elif not tables and not findings:
        findings.append("No two jobs measured what their settings may change, a speed or an accuracy.")
    return [*tables, _jobs(rows, " ".join(findings))], chosen


def _jobs(rows: list[SweepRow], finding: str) -> Table:
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
        keys = " and ".join(sorted(set(map(key_to_raise, few))))
        notes.append(f"{FEW_STEPS}: raise {keys}, until a job has at least {max(map(needed_steps, few))} steps")
    timed = [row for row in rows if not math.isnan(speed(row))]
    bars = Series("", tuple(f"{row.job}: {setting_of(row, names)}" for row in timed), tuple(map(speed, timed)))
    plots = (Plot("Images per second of each job", "", "images/s", "bars", (bars,)),) if timed else ()
    return Table("jobs", tuple(columns), tuple(cells), tuple(notes), plots, finding=finding)


def _number(row: SweepRow, key: str) -> Cell:
    value = row.summary.get(key)
    return value if isinstance(value, int | float) else None


def write_page(rows: list[SweepRow], sweep_dir: Path) -> None:
    from imagenet_opt.display.page import page_of_tables  # plotly only in the process that draws

    tables, chosen = tables_of(rows)
    text = page_of_tables(
        f"Sweep {sweep_dir.name}",
        "",
        tables,
        about={"folder": str(sweep_dir)},
        command=command("hydra.sweep.dir", sweep_dir),
        commands=list(dict.fromkeys(shlex.join(words) for words in chosen if words)),
    )
    write_atomically(sweep_dir / HTML, text)


def print_results(rows: list[SweepRow], sweep_dir: Path) -> None:
    """Print the tables and where the files are."""
    console = print_tables(tables_of(rows)[0])
    for file in (CSV, HTML):
        console.print(printable(str(sweep_dir / file)), soft_wrap=True)
