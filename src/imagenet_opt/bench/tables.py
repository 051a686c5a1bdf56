"""The tables and the page of a benchmark."""

import datetime
import shlex
from statistics import median

from imagenet_opt.bench.job import OWN
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.result import Report, describe, method, versions
from imagenet_opt.display.page import page_of_tables
from imagenet_opt.display.table import Cell, Column, Plot, Table, how_to_decide, series, verdict_in_words
from imagenet_opt.display.terminal_table import facts_table, print_tables, terminal
from imagenet_opt.measure.stats.intervals import Interval, median_interval
from imagenet_opt.measure.stats.paired_ratios import more_rounds, verdict

LEAST_SECONDS = 1.0
"""In shorter turns, the first and last batches determine the rate."""
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
"""Metric: its label in the table, and the factor to the label's unit."""


def print_report(report: Report) -> None:
    terminal(120).print(facts_table(_facts(report).items(), style="bold"))
    console = print_tables(_tables(report))
    seconds = median(turn.seconds for turns in report.rounds.results.values() for turn in turns)
    if seconds < LEAST_SECONDS:
        console.print(f"a turn lasts {seconds:.2f} s, too short for a reliable rate: raise --batches")


def page(report: Report, command: list[str]) -> str:
    """The result as an HTML page."""
    title = f"The loader alone, on {report.data['files_used']} files of {report.data['folder']}"
    return page_of_tables(title, _finding(report), _tables(report), about=_facts(report), command=shlex.join(command))


def _finding(report: Report) -> str:
    """Our first row, and the fastest other loader."""
    ours = next((side for side in OWN if report.rates(side)), None)
    if ours is None:
        return "No row of ours could be measured."
    sentence = f"The loader gives {median(report.rates(ours)):,.0f} images/s"
    peers = [(other, ratio) for side, other, ratio in report.ratios() if side == ours and other in PEERS]
    if not peers:
        return f"{sentence} here ({ours})."
    other, ratio = min(peers, key=lambda peer: peer[1].ratio)
    certainty = f"{_span(ratio, '{:.2f}')}, {verdict(ratio)}"
    return f"{sentence} ({ours}), {ratio.ratio:.2f} times as many as {other}, the fastest other loader ({certainty})."


def _tables(report: Report) -> list[Table]:
    return [table for table in (_rates(report), _stages(report), _ratios(report)) if table.rows]


def _facts(report: Report) -> dict[str, str]:
    machine, data, job = report.machine, report.data, report.plan.job
    busy = f"; {machine['busy_percent_before']:.0f} % busy before the run"
    host = f"{machine['cpu']}, {machine['usable_cpus']} usable CPUs, {machine['memory_gib']:g} GiB, "
    host += (machine["gpu"] or "no GPU") + (busy if machine["busy_percent_before"] >= 10 else "")
    part = "" if data["files"] == data["files_used"] else f" (a random part of {data['files']})"
    return {
        "date": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "machine": host,
        "versions": ", ".join(f"{name} {version}" for name, version in versions(report).items()),
        "data": f"{data['files_used']} files{part}, mean {data['mean_kb']:.0f} KB, "
        f"{data['mean_width']} x {data['mean_height']} pixels, on {data['storage']}, {data['folder']}",
        "batches": f"{job.loading.batch_size} crops, {job.loading.image_size} x {job.loading.image_size}",
        "method": method(report),
    }


def _rates(report: Report) -> Table:
    columns = (
        Column("loader"),
        Column("images/s", "{:.0f}"),
        Column("interval"),
        Column("CPU ms/image", "{:.2f}"),
        Column("first batch"),
        Column("description"),
    )
    rows: list[tuple[Cell, ...]] = []
    rates_of = {side: median_interval(rates) for side in report.rows() if (rates := report.rates(side))}
    for side in report.rows():
        if rate := rates_of.get(side):
            first = median(turn.first_batch_seconds for turn in report.rounds.results[side])
            cpu, what = median(report.cpu_ms(side)), describe(side, report.plan.job)
            rows.append((side, rate.median, _span(rate, "{:.0f}"), cpu, f"{first:.1f} s", what))
        else:
            rows.append((side, None, "", "", "", report.failure(side)))
    plot = Plot("Images per second, medians with their intervals", "", "images/s", "bars", (series("", rates_of),))
    return Table("loader alone", columns, tuple(rows), plots=(plot,))


def _stages(report: Report) -> Table:
    """A table with a column for each of our rows."""
    stages = {side: report.stages(side) for side in OWN if report.rates(side)}
    rows: list[tuple[Cell, ...]] = []
    for name, (label, factor) in _STAGES.items():
        if any(name in means for means in stages.values()):
            rows.append((label, *(factor * means[name] if name in means else None for means in stages.values())))
    columns = (Column("stage"), *(Column(side, "{:.4g}") for side in stages))
    return Table("time of a worker for one batch", columns, tuple(rows))


def _ratios(report: Report) -> Table:
    columns = (Column("loaders"), Column("ratio", "{:.2f}"), Column("interval"), Column("verdict"))
    ratios, num_rounds = report.ratios(), max(len(report.rates(side)) for side in report.rows())
    round_seconds = report.rounds.seconds / max(1, num_rounds)
    rows = tuple(
        (
            f"{side} / {other}",
            ratio.ratio,
            _span(ratio, "{:.2f}"),
            verdict_in_words(ratio, round_seconds * more_rounds(ratio)),
        )
        for side, other, ratio in ratios
    )
    return how_to_decide(Table("ratios", columns, rows))


def _span(interval: Interval, number: str) -> str:
    if not interval.coverage:
        return "one round"
    return f"{number.format(interval.low)} to {number.format(interval.high)} ({100 * interval.coverage:.0f} %)"
