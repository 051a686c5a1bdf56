"""What a benchmark found, as tables for a person."""

import datetime
from collections.abc import Mapping
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from imagenet_opt.cli.bench_job import OWN
from imagenet_opt.cli.bench_peers import PEERS
from imagenet_opt.cli.bench_report import Report, describe, method, versions
from imagenet_opt.display.printable import printable
from imagenet_opt.measure.stats.intervals import LEAST_COVERAGE, Estimate, median_interval, verdict

TARGET = 0.85
"""Share of what nvImageCodec alone decodes that our region decode is to reach."""
LEAST_SECONDS = 1.0
"""Where turns time less than that, the first and last batches decide."""
_STAGES = {
    "loader/read_seconds": ("waits for bytes, ms", 1e3),
    "loader/decode_seconds": ("decodes (and resizes), ms", 1e3),
    "other_seconds": ("anything else, ms", 1e3),
    "loader/copy_seconds": ("copy to the GPU, ms", 1e3),
    "loader/mb_read": ("encoded bytes, MB", 1),
    "loader/reads_in_flight": ("reads in flight", 1),
    "loader/queue_depth": ("batches ready when one is taken", 1),
    "loader/queue_seconds": ("lay ready, ms", 1e3),
    "loader/skipped": ("bad files so far", 1),
    "num_workers": ("workers", 1),
}
"""Metric -> what a person reads, and what to multiply by."""


def print_report(report: Report) -> None:
    console = Console(width=None if Console().is_terminal else 120, highlight=False, markup=False)
    console.print(_facts(report), "")
    console.print(_rates(report))
    for table in (_stages(report), _ratios(report)):
        if table.row_count:
            console.print(table)
    seconds = median(turn.seconds for turns in report.rounds.results.values() for turn in turns)
    if seconds < LEAST_SECONDS:
        console.print(f"a turn timed {seconds:.2f} s, too short to trust: raise --batches")


def _facts(report: Report) -> Table:
    found, data, job = report.machine, report.data, report.plan.job
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    busy = f"; {found['busy_percent_before']:.0f} % busy before the run" if found["busy_percent_before"] >= 10 else ""
    gpu = found["gpu"] or "no GPU"
    table.add_row("date", datetime.datetime.now().strftime("%Y-%m-%d %H:%M"))
    table.add_row(
        "machine", f"{found['cpu']}, {found['usable_cpus']} usable CPUs, {found['memory_gib']:g} GiB, {gpu}{busy}"
    )
    table.add_row("versions", ", ".join(f"{name} {version}" for name, version in versions(report).items()))
    part = "" if data["files"] == data["files_used"] else f" (a random part of {data['files']})"
    table.add_row(
        "data",
        f"{data['files_used']} files{part}, mean {data['mean_kb']:.0f} KB, {data['mean_width']} x "
        f"{data['mean_height']} pixels, on {data['storage']}, {printable(str(data['folder']))}",
    )
    table.add_row("batches", f"{job.loading.batch_size} crops, {job.loading.image_size} x {job.loading.image_size}")
    table.add_row("method", method(report))
    return table


def _rates(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="loader alone", title_justify="left")
    table.add_column()
    table.add_column("images/s", justify="right")
    table.add_column("interval", justify="right", no_wrap=True)
    table.add_column("first batch", justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for side in report.rows():
        if not (rates := report.rates(side)):
            table.add_row(side, "-", "", "", printable(report.failure(side) or ""))
            continue
        found = median_interval(rates)
        first = median(turn.first_batch_seconds for turn in report.rounds.results[side])
        table.add_row(
            side, f"{found.median:.0f}", _span(found, "{:.0f}"), f"{first:.1f} s", describe(side, report.plan.job)
        )
    return table


def _stages(report: Report) -> Table:
    """One column for each of our rows."""
    found = {side: report.stages(side) for side in OWN if report.rates(side)}
    table = Table(box=box.SIMPLE_HEAD, title="one batch, as its worker spent the time", title_justify="left")
    for name in ("", *found):
        table.add_column(name, justify="right" if name else "left")
    known = [name for name in _STAGES if any(name in stages for stages in found.values())]
    for name in known:
        label, factor = _STAGES[name]
        table.add_row(label, *(_number(stages, name, factor) for stages in found.values()))
    return table


def _number(stages: Mapping[str, float], name: str, factor: float) -> str:
    return f"{stages[name] * factor:.4g}" if name in stages else ""


def _ratios(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="ratios, round by round", title_justify="left")
    table.add_column()
    table.add_column("ratio", justify="right")
    table.add_column("interval", justify="right", no_wrap=True)
    table.add_column()
    for side, other, ratio in report.ratios():
        says = verdict(ratio) if other in PEERS else _target(ratio)
        table.add_row(f"{side} / {other}", f"{ratio.median:.2f}", _span(ratio, "{:.2f}"), says)
    return table


def _target(ratio: Estimate) -> str:
    unsure = ratio.coverage < LEAST_COVERAGE or ratio.low < TARGET <= ratio.high
    outcome = "undecided" if unsure else "reached" if ratio.low >= TARGET else "missed"
    return f"target {TARGET}: {outcome}"


def _span(found: Estimate, number: str) -> str:
    if found.num == 1:
        return "one round"
    return f"{number.format(found.low)} to {number.format(found.high)} ({100 * found.coverage:.0f} %)"
