"""The result of a benchmark, for JSON and for the tables."""

import datetime
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from rich.table import Table as RichTable

from imagenet_opt import machine
from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.bench.job import CEILING, OWN, REGION, WORKER, Job
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.plan import Plan
from imagenet_opt.bench.turn import Turn
from imagenet_opt.data.decode.image_file import REFUSED, open_image
from imagenet_opt.data.loader import store_of
from imagenet_opt.display.table import Cell, Column, Table
from imagenet_opt.display.terminal_table import facts_table, print_tables, strict_json, terminal
from imagenet_opt.measure.stats.block_ratios import UNDECIDED, Ratio, block_ratios, verdict
from imagenet_opt.measure.stats.intervals import Interval, median_interval
from imagenet_opt.measure.stats.rounds import Rounds

_LOOKED_AT = 200
"""Files whose sizes tell the mean."""


@dataclass(frozen=True)
class Report:
    """machine, data: facts by name."""

    plan: Plan
    rounds: Rounds[Turn]
    machine: dict[str, Any]
    data: dict[str, Any]

    def rates(self, side: str) -> list[float]:
        """Images per second of each round; empty if the row failed."""
        return [] if side in self.rounds.failures else [t.images_per_second for t in self.rounds.results.get(side, [])]

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
        rounds = [turn.stages | self._other(turn) for turn in self.rounds.results[side]]
        return {name: median(stages[name] for stages in rounds) for name in rounds[0]}

    def _other(self, turn: Turn) -> dict[str, float]:
        stages = turn.stages
        if not {"loader/read_seconds", "loader/decode_seconds", "num_workers"} <= stages.keys():
            return {}
        between = max(1.0, stages["num_workers"]) * self.plan.job.loading.batch_size / turn.images_per_second
        return {"other_seconds": max(0.0, between - stages["loader/read_seconds"] - stages["loader/decode_seconds"])}

    def ratios(self) -> Iterator[tuple[str, str, Ratio]]:
        """Ratios of our rows to the limit and to every peer."""
        values = {side: rates for side in self.rows() if (rates := self.rates(side))}
        pairs = [
            (side, other)
            for side in OWN
            for other in values
            if side in values and (other in PEERS or (side, other) == (REGION, CEILING))
        ]
        for (side, other), ratio in zip(pairs, block_ratios(values, pairs) if pairs else (), strict=True):
            yield side, other, ratio


def data_facts(plan: Plan) -> dict[str, Any]:
    """Number of files, and their mean size in KB and pixels, estimated from a sample; unreadable files do not count."""
    job = plan.job
    spread = np.unique(np.linspace(0, job.num_files - 1, _LOOKED_AT).astype(np.int64))
    store, sizes = store_of(job.index, job.loading), []
    for i in spread:
        try:
            (encoded,) = store.read_many(np.array([i]))
            sizes.append((len(encoded), *open_image(encoded).size))
        except REFUSED:
            continue
    num_bytes, width, height = (mean(column) for column in zip(*sizes, strict=True)) if sizes else (0, 0, 0)
    return {
        "folder": str(job.index.folder),
        "files": plan.num_found,
        "files_used": job.num_files,
        "mean_kb": round(num_bytes / 1e3, 1),
        "mean_width": round(width),
        "mean_height": round(height),
        "storage": machine.mount_of(str(job.index.folder)),
        "added_latency_ms": job.loading.added_latency_ms,
        "max_mb_per_second": job.loading.max_mb_per_second,
    }


def as_json(report: Report, command: list[str]) -> dict[str, Any]:
    """Everything, with images_per_second and interval of our first row at the top; times are seconds per batch."""
    rows = [_row(report, side) for side in report.rows()]
    how = report.plan.job
    return {
        "command": shlex.join(command),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": report.machine,
        "versions": versions(report),
        "data": report.data,
        "settings": {
            "batch_size": how.loading.batch_size,
            "image_size": how.loading.image_size,
            "crop_scale": list(how.loading.crop_scale),
            "shuffle": how.loading.shuffle,
            "num_workers": how.num_workers,
            "prefetch_factor": how.prefetch_factor,
            "warmup_batches": how.num_warmup,
            "timed_batches": how.num_batches,
            "batches_end_on": how.device,
        },
        "method": method(report),
        "row": rows[0]["name"],
        **{key: rows[0][key] for key in ("images_per_second", "interval", "stages")},
        "rows": rows,
        "ratios": [
            {"of": side, "to": other, **_interval(ratio.ratio, ratio, "ratio"), "verdict": verdict(ratio)}
            for side, other, ratio in report.ratios()
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
        f"all rows in turn, {num} round{'s' * (num != 1)}; a turn is a process of its own with {job.num_workers} "
        f"workers or threads, {job.num_warmup} batches discarded, then {job.num_batches} timed{listed}; batches end "
        f"{end}; medians with 95 % intervals from order statistics; ratios of geometric means with 95 % intervals from "
        "Student's t on the logarithms, which hold together"
    )


def _row(report: Report, side: str) -> dict[str, Any]:
    kind = "ours" if side in OWN else "ceiling" if side == CEILING else "peer"
    row = {"name": side, "kind": kind, "what": describe(side, report.plan.job), "failure": report.failure(side)}
    rates = report.rates(side)
    if not rates:
        return row | {"images_per_second": None, "interval": None, "rounds": [], "stages": {}}
    turns = report.rounds.results[side]
    return row | {
        **_interval(median(rates), median_interval(rates), "images_per_second"),
        "rounds": rates,
        "first_batch_seconds": median(turn.first_batch_seconds for turn in turns),
        "stages": report.stages(side),
    }


def _interval(centre: float, interval: Interval, name: str) -> dict[str, Any]:
    return {name: centre, "interval": [interval.low, interval.high], "coverage": interval.coverage}


def describe(side: str, job: Job) -> str:
    """One line about what a row measures."""
    size = job.loading.image_size
    own = {
        WORKER: f"uint8 images of {size} x {size}, resized by the workers",
        REGION: "crops as they are, for the GPU to resize",
        CEILING: "such crops from memory, nothing read, nothing handed over",
    }
    if side in own:
        return own[side]
    slow = f"; {job.loading.added_latency_ms:g} ms added to each open" if job.loading.added_latency_ms else ""
    return PEERS[side].how + slow


def write_json(report: Report, file: Path, *, command: list[str]) -> None:
    write_atomically(file, strict_json(as_json(report, command)))


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
    terminal(120).print(_facts(report))
    tables = (_rates(report), _stages(report), _ratios(report))
    console = print_tables([table for table in tables if table.rows])
    seconds = median(turn.seconds for turns in report.rounds.results.values() for turn in turns)
    if seconds < LEAST_SECONDS:
        console.print(f"a turn timed {seconds:.2f} s, too short to trust: raise --batches")


def _facts(report: Report) -> RichTable:
    machine, data, job = report.machine, report.data, report.plan.job
    busy = (
        f"; {machine['busy_percent_before']:.0f} % busy before the run" if machine["busy_percent_before"] >= 10 else ""
    )
    gpu = machine["gpu"] or "no GPU"
    part = "" if data["files"] == data["files_used"] else f" (a random part of {data['files']})"
    facts = {
        "date": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "machine": f"{machine['cpu']}, {machine['usable_cpus']} usable CPUs, {machine['memory_gib']:g} GiB, {gpu}"
        f"{busy}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions(report).items()),
        "data": f"{data['files_used']} files{part}, mean {data['mean_kb']:.0f} KB, {data['mean_width']} x "
        f"{data['mean_height']} pixels, on {data['storage']}, {data['folder']}",
        "batches": f"{job.loading.batch_size} crops, {job.loading.image_size} x {job.loading.image_size}",
        "method": method(report),
    }
    return facts_table(facts.items(), style="bold")


def _rates(report: Report) -> Table:
    columns = (
        Column("loader"),
        Column("images/s", "{:.0f}"),
        Column("interval"),
        Column("first batch"),
        Column("description"),
    )
    rows: list[tuple[Cell, ...]] = []
    for side in report.rows():
        if not (rates := report.rates(side)):
            rows.append((side, None, "", "", report.failure(side)))
            continue
        rate = median_interval(rates)
        first = median(turn.first_batch_seconds for turn in report.rounds.results[side])
        rows.append((side, rate.median, _span(rate, "{:.0f}"), f"{first:.1f} s", describe(side, report.plan.job)))
    return Table("loader alone", columns, tuple(rows))


def _stages(report: Report) -> Table:
    """A table with a column for each of our rows."""
    stages = {side: report.stages(side) for side in OWN if report.rates(side)}
    rows: list[tuple[Cell, ...]] = []
    for name, (label, factor) in _STAGES.items():
        if any(name in means for means in stages.values()):
            rows.append((label, *(factor * means[name] if name in means else None for means in stages.values())))
    columns = (Column("stage"), *(Column(side, "{:.4g}") for side in stages))
    return Table("what a worker spends the time of a batch on", columns, tuple(rows))


def _ratios(report: Report) -> Table:
    columns = (Column("loaders"), Column("ratio", "{:.2f}"), Column("interval"), Column("verdict"))
    ratios = list(report.ratios())
    rows = [(f"{side} / {other}", ratio.ratio, _span(ratio, "{:.2f}"), verdict(ratio)) for side, other, ratio in ratios]
    undecided = any(verdict(ratio) == UNDECIDED for _, _, ratio in ratios)
    notes = ("undecided ratios: more --repeats narrow the intervals",) if undecided else ()
    return Table("ratios", columns, tuple(rows), notes)


def _span(interval: Interval, number: str) -> str:
    if not interval.coverage:
        return "one round"
    return f"{number.format(interval.low)} to {number.format(interval.high)} ({100 * interval.coverage:.0f} %)"
