"""The result of a benchmark, and its JSON."""

import datetime
import shlex
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from imagenet_opt import machine
from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.bench.job import CEILING, OWN, REGION, WORKER, Job
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.plan import Plan
from imagenet_opt.bench.turn import Turn
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.data.decode.image_file import REFUSED, open_image
from imagenet_opt.data.loader import store_of
from imagenet_opt.display.terminal_table import strict_json
from imagenet_opt.measure.stats.intervals import Interval, median_interval
from imagenet_opt.measure.stats.paired_ratios import Ratio, paired_ratios, verdict

_NUM_SAMPLED = 200
"""Files whose sizes give the estimated means."""


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

    def ratios(self) -> list[tuple[str, str, Ratio]]:
        """Ratios of our rows to the limit and to every peer."""
        values = {side: rates for side in self.rows() if (rates := self.rates(side))}
        ours = [side for side in OWN if side in values]
        others = [side for side in values if side not in OWN]
        pairs = [(side, other) for side in ours for other in others if other in PEERS or side == REGION]
        ratios = paired_ratios(values, pairs) if pairs else []
        return [(*pair, ratio) for pair, ratio in zip(pairs, ratios, strict=True)]


def data_facts(plan: Plan) -> dict[str, Any]:
    """Number of files, and their mean size in KB and pixels, estimated from a sample without unreadable files."""
    job = plan.job
    store, sizes = store_of(job.index, job.loading), []
    for i in np.unique(np.linspace(0, job.num_files - 1, _NUM_SAMPLED).astype(np.int64)):
        try:
            (encoded,) = store.read_many(np.array([i]))
            sizes.append((len(encoded), *open_image(encoded).size))
        except REFUSED:
            continue
    num_bytes, width, height = (mean(column) for column in zip(*sizes, strict=True)) if sizes else (0, 0, 0)
    return {
        "folder": job.index.place,
        "files": plan.num_found,
        "files_used": job.num_files,
        "mean_kb": round(num_bytes / 1e3, 1),
        "mean_width": round(width),
        "mean_height": round(height),
        "storage": machine.mount_of(job.index.place),
        "added_latency_ms": job.loading.added_latency_ms,
        "max_mb_per_second": job.loading.max_mb_per_second,
    }


def as_json(report: Report, command: list[str]) -> dict[str, Any]:
    """The result as JSON values; images_per_second and interval at the top are of our first row; times per batch."""
    rows = [_row(report, side) for side in report.rows()]
    job = report.plan.job
    return {
        "command": shlex.join(command),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": report.machine,
        "versions": versions(report),
        "data": report.data,
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
        f"each row once per round, {num} round{'s' * (num != 1)}; a turn is a process of its own with "
        f"{job.num_workers} workers or threads, {job.num_warmup} batches discarded, "
        f"then {job.num_batches} timed{listed}; batches end "
        f"{end}; medians with 95 % intervals from order statistics; ratios of geometric means with 95 % intervals from "
        "Student's t on the logarithms (with many rounds from signed ranks), valid for all ratios at once"
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
