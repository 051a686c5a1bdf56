"""The results of a sweep on the terminal, as CSV and as a page: its jobs, and its settings if it has several seeds."""

import csv
import io
import math
import shlex
from collections import Counter, defaultdict
from pathlib import Path
from statistics import geometric_mean, median
from textwrap import shorten

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.compare.gain import gains
from imagenet_opt.config.overrides import key_of
from imagenet_opt.display.printable import printable
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table, series
from imagenet_opt.display.terminal_table import print_tables
from imagenet_opt.measure.stats.intervals import median_interval
from imagenet_opt.run.numbers import IMAGES_PER_SECOND
from imagenet_opt.sweep.rows import (
    FEW_STEPS,
    PREFETCH,
    WORKERS,
    Row,
    best,
    is_reliable,
    needed_steps,
    outcome,
    parameters,
    setting_of,
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
SEED = "seed"
_TAKE_TURNS = (
    f"Type {SEED}= before the other overrides: then settings take turns, and a machine that becomes slower meanwhile "
    "slows all of them. To decide what is undecided, run the same command with more seeds after the present ones, and "
    "the same hydra.sweep.dir: jobs that have finished are not run again."
)
_SETTING_COLUMNS = (
    *(Column("setting"), Column("images/s", "{:,.0f}"), Column("times the fastest", "{:.2f}")),
    *(Column("95 % interval"), Column("verdict")),
)
_ONE_RUN_EACH = (
    "Speeds vary by chance: to decide between jobs that are close, type seed=1,2,3,4 before the other overrides, so "
    "that each setting runs four times, or use imagenet-opt study."
)


def write_csv(rows: list[Row], sweep_dir: Path) -> None:
    """Write sweep.csv: job, parameters, numbers under their keys of summary.json, outcome."""
    metrics = sorted({key for row in rows for key in row.summary})
    ending = ("status", "seconds", "exit_code", "error")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["job", *parameters(rows), *metrics, *ending], extrasaction="ignore")
    writer.writeheader()
    writer.writerows({**row.model_dump(), **row.parameters, **row.summary} for row in rows)
    write_atomically(sweep_dir / CSV, text.getvalue())


def tables_of(rows: list[Row]) -> tuple[list[Table], Row | None]:
    """The settings, if they can be compared, and the jobs; and a job of the fastest setting, else the fastest job."""
    if (found := compared(rows)) is not None:
        return [found[0], _jobs(rows, "")], found[1][0]
    fastest = best(rows)
    finding = "No job has measured a speed."
    if fastest is not None:
        finding = f"Job {fastest.job} was the fastest of {len(rows)}, with {speed(fastest):,.0f} images/s."
        finding += f" {_ONE_RUN_EACH}" * (len(rows) > 1)
    return [_jobs(rows, finding)], fastest


def compared(rows: list[Row]) -> tuple[Table, list[Row]] | None:
    """Compare each setting with the fastest one, over the seeds that all of them have; and the jobs of the fastest.

    A setting is the values of the parameters that vary, without the seed. A job without a reliable speed does not
    count, nor a setting with less than two other jobs. None if less than two settings or two seeds are left.
    """
    names = [name for name in varying(rows) if name != SEED]
    timed = defaultdict[str, dict[str | None, Row]](dict)
    for row in filter(is_reliable, rows):
        timed[setting_of(row, names)][row.parameters.get(SEED)] = row
    repeated = {setting: jobs for setting, jobs in timed.items() if len(jobs) > 1}
    seeds = [seed for seed in next(iter(repeated.values()), ()) if all(seed in jobs for jobs in repeated.values())]
    if len(repeated) < 2 or len(seeds) < 2:
        return None
    jobs = {setting: [of_seed[seed] for seed in seeds] for setting, of_seed in repeated.items()}
    rates = {setting: list(map(speed, of_setting)) for setting, of_setting in jobs.items()}
    means = {setting: geometric_mean(values) for setting, values in rates.items()}
    fastest = max(means, key=means.__getitem__)
    return _settings(rows, rates, means, fastest), jobs[fastest]


def _settings(rows: list[Row], rates: dict[str, list[float]], means: dict[str, float], fastest: str) -> Table:
    found = gains(
        rates,
        [(setting, fastest) for setting in rates if setting != fastest],
        num_comparisons=math.comb(len(rates), 2),  # the measurements chose the pairs that are compared
        round_seconds=len(rates) * median(row.seconds for row in rows),
    )
    cells: dict[str, tuple[Cell, ...]] = {setting: gain.cells[1:] for (setting, _), gain in found.items()}
    cells[fastest] = (None, None, "the fastest")
    verdicts = Counter(gain.verdict for gain in found.values())
    finding = (
        f"{fastest} had the most images/s of {len(rates)} settings, {means[fastest]:,.0f} in {len(rates[fastest])} jobs"
        f"; the others: {', '.join(f'{num} {word}' for word, num in verdicts.items())}."
    )
    points = {setting: median_interval(values) for setting, values in rates.items()}
    plot = Plot("Images per second, medians with their intervals", "", "images/s", "bars", (series("", points),))
    lines = tuple((setting, mean, *cells[setting]) for setting, mean in means.items())
    return Table("settings, over several seeds", _SETTING_COLUMNS, lines, (_TAKE_TURNS,), (plot,), finding=finding)


def _jobs(rows: list[Row], finding: str) -> Table:
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
    timed = [row for row in rows if not math.isnan(speed(row))]
    bars = Series("", tuple(f"{row.job}: {setting_of(row, names)}" for row in timed), tuple(map(speed, timed)))
    plots = (Plot("Images per second of each job", "", "images/s", "bars", (bars,)),) if timed else ()
    return Table("jobs", tuple(columns), tuple(cells), tuple(notes), plots, finding=finding)


def _number(row: Row, key: str) -> Cell:
    value = row.summary.get(key)
    return value if isinstance(value, int | float) else None


def write_page(rows: list[Row], sweep_dir: Path) -> None:
    from imagenet_opt.display.page import page_of_tables  # plotly only in the process that draws

    tables, fastest = tables_of(rows)
    names = {name for name in varying(rows) if name != SEED}
    chosen = [] if fastest is None else [word for word in fastest.overrides if key_of(word) in names]
    text = page_of_tables(
        f"Sweep {sweep_dir.name}",
        "",
        tables,
        about={"folder": str(sweep_dir)},
        command=command("hydra.sweep.dir", sweep_dir),
        commands=[shlex.join(chosen)] if chosen else [],
    )
    write_atomically(sweep_dir / HTML, text)


def print_results(rows: list[Row], sweep_dir: Path) -> None:
    """Print the tables and where the files are."""
    console = print_tables(tables_of(rows)[0])
    for file in (CSV, HTML):
        console.print(printable(str(sweep_dir / file)), soft_wrap=True)
