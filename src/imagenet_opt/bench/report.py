"""The result of a benchmark: its tables, its page and its JSON."""

import datetime
import shlex
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from imagenet_opt import machine
from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.bench.job import CEILING, OWN, REGION, WORKER, Job
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.plan import Plan
from imagenet_opt.bench.turn import Turn
from imagenet_opt.compare.gain import Gain, Pair, gains
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.display.page import page_of_tables
from imagenet_opt.display.table import Cell, Column, Plot, Table, how_to_decide, series
from imagenet_opt.display.terminal_table import facts_table, print_tables, strict_json, terminal
from imagenet_opt.measure.stats.intervals import Interval, median_interval

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


@dataclass(frozen=True)
class Report:
    """machine: facts by name. state: of the files, in words."""

    plan: Plan
    rounds: Rounds[Turn]
    machine: dict[str, Any]
    state: str

    def rates(self, side: str) -> list[float]:
        """Images per second of each round; empty if the row failed."""
        return [] if side in self.rounds.failures else [t.images_per_second for t in self.rounds.results.get(side, [])]

    def cpu_ms(self, side: str) -> list[float]:
        """Milliseconds of CPU time per image of each round, of all threads and processes of the loader."""
        return [1000 * turn.cpu_seconds / turn.num_images for turn in self.rounds.results[side]]

    def failure(self, side: str) -> str | None:
        return self.plan.absent.get(side) or self.rounds.failures.get(side)

    def rows(self) -> list[str]:
        """All rows, measured or not, in the order of the table."""
        names = {*self.plan.sides, *self.plan.absent}
        return [name for name in (*OWN, CEILING, *PEERS) if name in names]

    def stages(self, side: str) -> dict[str, float]:
        """Medians over the rounds of the loader's times per batch.

        other_seconds: time of a worker between two batches in which it neither waited for bytes nor decoded.
        """
        rounds = []
        for turn in self.rounds.results[side]:
            stages = dict(turn.stages)
            if {"loader/read_seconds", "loader/decode_seconds", "num_workers"} <= stages.keys():
                batch_size = self.plan.job.loading.batch_size
                worker_seconds = max(1.0, stages["num_workers"]) * batch_size / turn.images_per_second
                busy_seconds = stages["loader/read_seconds"] + stages["loader/decode_seconds"]
                stages["other_seconds"] = max(0.0, worker_seconds - busy_seconds)
            rounds.append(stages)
        return {name: median(stages[name] for stages in rounds) for name in rounds[0]}

    def gains(self) -> dict[Pair, Gain]:
        """Ratios of our rows to the limit and to every peer."""
        values = {side: rates for side in self.rows() if (rates := self.rates(side))}
        ours = [side for side in OWN if side in values]
        others = [side for side in values if side not in OWN]
        pairs = [(side, other) for side in ours for other in others if other in PEERS or side == REGION]
        num_rounds = max(map(len, values.values()), default=1)
        return gains(values, pairs, round_seconds=self.rounds.seconds / num_rounds)


def print_report(report: Report) -> None:
    terminal(120).print(facts_table(_facts(report).items(), style="bold"))
    console = print_tables(_tables(report))
    seconds = median(turn.seconds for turns in report.rounds.results.values() for turn in turns)
    if seconds < LEAST_SECONDS:
        console.print(f"a turn lasts {seconds:.2f} s, too short for a reliable rate: raise --batches")


def page(report: Report, command: list[str]) -> str:
    """The result as an HTML page."""
    title = f"The loader alone, on {report.plan.data['files_used']} files of {report.plan.data['folder']}"
    return page_of_tables(title, _finding(report), _tables(report), about=_facts(report), command=shlex.join(command))


def _finding(report: Report) -> str:
    """Our first row, and the fastest other loader."""
    ours = next((side for side in OWN if report.rates(side)), None)
    if ours is None:
        return "No row of ours could be measured."
    sentence = f"The loader gives {median(report.rates(ours)):,.0f} images/s"
    peers = {other: gain for (side, other), gain in report.gains().items() if side == ours and other in PEERS}
    if not peers:
        return f"{sentence} here ({ours})."
    other = min(peers, key=lambda peer: peers[peer].ratio.ratio)
    return f"{sentence} ({ours}); beside {other}, the fastest other loader: {peers[other]}."


def _tables(report: Report) -> list[Table]:
    return [table for table in (_rates(report), _stages(report), _ratios(report)) if table.rows]


def _facts(report: Report) -> dict[str, str]:
    machine, data, job = report.machine, report.plan.data, report.plan.job
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
    return Table(f"loader alone, {report.state}", columns, tuple(rows), plots=(plot,))


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
    columns = (Column("loaders"), Column("ratio", "{:.2f}"), Column("95 % interval"), Column("verdict"))
    rows = tuple((f"{side} / {other}", *gain.cells[1:]) for (side, other), gain in report.gains().items())
    return how_to_decide(Table("ratios", columns, rows))


def _span(interval: Interval, number: str) -> str:
    if not interval.coverage:
        return "one round"
    return f"{number.format(interval.low)} to {number.format(interval.high)} ({100 * interval.coverage:.0f} %)"


def as_json(report: Report, command: list[str]) -> dict[str, Any]:
    """The result as JSON values; images_per_second and interval at the top are of our first row; times per batch."""
    rows = [_row(report, side) for side in report.rows()]
    job = report.plan.job
    return {
        "command": shlex.join(command),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": report.machine,
        "versions": versions(report),
        "data": report.plan.data | {"state": report.state},
        "settings": {
            "batch_size": job.loading.batch_size,
            "image_size": job.loading.image_size,
            "crop_scale": list(job.loading.crop_scale),
            "shuffle": job.loading.shuffle,
            "num_workers": job.num_workers,
            "prefetch_factor": job.prefetch_factor,
            "warmup_batches": job.num_warmup,
            "timed_batches": job.num_batches,
            "batches_end_on": job.device,
        },
        "method": method(report),
        "row": rows[0]["name"],
        **{key: rows[0][key] for key in ("images_per_second", "interval", "stages")},
        "rows": rows,
        "ratios": [
            {"of": side, "to": other, **_interval(gain.ratio.ratio, gain.ratio, "ratio"), "verdict": gain.verdict}
            for (side, other), gain in report.gains().items()
        ],
    }


def versions(report: Report) -> dict[str, str]:
    """Versions of this program and of the measured peers."""
    peers = {PEERS[name].package: PEERS[name].version for name in report.plan.sides if name in PEERS}
    return machine.versions() | peers


def method(report: Report) -> str:
    job, num = report.plan.job, max((len(turns) for turns in report.rounds.results.values()), default=0)
    end = "on the GPU" if job.device == "cuda" else "in host memory"
    listed = f", the list of files repeated {job.passes} times so that no epoch ends" if job.passes > 1 else ""
    return (
        f"{report.state}; each row once per round, {num} round{'s' * (num != 1)}; a turn is a process of its own with "
        f"{job.num_workers} workers or threads, {job.num_warmup} batches discarded, "
        f"then {job.num_batches} timed{listed}; batches end "
        f"{end}; medians with 95 % intervals from order statistics; ratios of geometric means with 95 % intervals from "
        "Student's t on the logarithms, valid for all ratios at once"
    )


def _row(report: Report, side: str) -> dict[str, Any]:
    kind = "ours" if side in OWN else "ceiling" if side == CEILING else "peer"
    row = {"name": side, "kind": kind, "what": describe(side, report.plan.job), "failure": report.failure(side)}
    if not (rates := report.rates(side)):
        return row | {"images_per_second": None, "interval": None, "rounds": [], "stages": {}}
    turns = report.rounds.results[side]
    return row | {
        **_interval(median(rates), median_interval(rates), "images_per_second"),
        "rounds": rates,
        "cpu_ms_per_image": report.cpu_ms(side),
        "first_batch_seconds": median(turn.first_batch_seconds for turn in turns),
        "stages": report.stages(side),
    }


def _interval(centre: float, interval: Interval, name: str) -> dict[str, Any]:
    return {name: centre, "interval": [interval.low, interval.high], "coverage": interval.coverage}


def describe(side: str, job: Job) -> str:
    """One line about what a row measures."""
    size = job.loading.image_size
    ours = {
        WORKER: f"uint8 images of {size} x {size}, resized by the workers",
        REGION: "crops of their original size, for the GPU to resize",
        CEILING: "crops decoded from memory; no file is read and no batch is sent to the training process",
    }
    if side in ours:
        return ours[side]
    slow = f"; {job.loading.added_latency_ms:g} ms added to each open" if job.loading.added_latency_ms else ""
    return PEERS[side].how + slow


def write_json(report: Report, file: Path, *, command: list[str]) -> None:
    write_atomically(file, strict_json(as_json(report, command)))
