"""What a benchmark found, as numbers: for JSON, and for the tables of bench_table."""

import datetime
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from imagenet_opt import machine
from imagenet_opt.cli.bench_job import CEILING, OWN, REGION, WORKER, Job
from imagenet_opt.cli.bench_peers import PEERS
from imagenet_opt.cli.bench_plan import Plan
from imagenet_opt.data.image_file import REFUSED, open_image
from imagenet_opt.data.loader import store_of
from imagenet_opt.measure.stats.intervals import Estimate, median_interval, ratio_interval, verdict
from imagenet_opt.measure.stats.rounds import Rounds
from imagenet_opt.measure.turn import Turn

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
        """Images per second of each round; none where the side failed."""
        return [] if side in self.rounds.failures else [t.images_per_second for t in self.rounds.results.get(side, [])]

    def failure(self, side: str) -> str | None:
        return self.plan.absent.get(side) or self.rounds.failures.get(side)

    def rows(self) -> list[str]:
        """All sides, measured or not, in the order of the table."""
        names = {*self.plan.sides, *self.plan.absent}
        return [name for name in (*OWN, CEILING, *PEERS) if name in names]

    def stages(self, side: str) -> dict[str, float]:
        """Medians over the rounds of what the loader told of a batch. other_seconds: of a worker's time between two of
        its batches, what it neither waited for bytes nor decoded."""
        rounds = [turn.stages | self._other(turn) for turn in self.rounds.results[side]]
        return {name: median(stages[name] for stages in rounds) for name in rounds[0]}

    def _other(self, turn: Turn) -> dict[str, float]:
        found = turn.stages
        if not {"loader/read_seconds", "loader/decode_seconds", "num_workers"} <= found.keys():
            return {}
        between = max(1.0, found["num_workers"]) * self.plan.job.loading.batch_size / turn.images_per_second
        return {"other_seconds": between - found["loader/read_seconds"] - found["loader/decode_seconds"]}

    def ratios(self) -> Iterator[tuple[str, str, Estimate]]:
        """Our rows over the ceiling and every peer."""
        for side in OWN:
            for other in self.rows():
                against = other in PEERS or (side, other) == (REGION, CEILING)
                if against and self.rates(side) and self.rates(other):
                    yield side, other, ratio_interval(self.rates(side), self.rates(other))


def data_facts(plan: Plan) -> dict[str, Any]:
    """How many files, and their mean size in KB and pixels, from some of them; unreadable ones do not count."""
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
    """Everything, images_per_second and interval of our first row on top; times in seconds of a batch."""
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
            {"of": side, "to": other, **_estimate(ratio, "ratio"), "verdict": verdict(ratio)}
            for side, other, ratio in report.ratios()
        ],
    }


def versions(report: Report) -> dict[str, str]:
    """Ours, and of the peers that are rows."""
    peers = {PEERS[name].package: PEERS[name].version for name in report.plan.sides if name in PEERS}
    return machine.versions() | peers


def method(report: Report) -> str:
    job, num = report.plan.job, max((len(turns) for turns in report.rounds.results.values()), default=0)
    end = "on the GPU" if job.device == "cuda" else "in host memory"
    listed = f", the files listed {job.passes} times over so that no epoch ends" if job.passes > 1 else ""
    return (
        f"all rows in turn, {num} round{'s' * (num != 1)}; a turn is a process of its own with {job.num_workers} "
        f"workers or threads, {job.num_warmup} batches discarded, then {job.num_batches} timed{listed}; batches end "
        f"{end}; medians, and the order statistics that hold the median so surely"
    )


def _row(report: Report, side: str) -> dict[str, Any]:
    kind = "ours" if side in OWN else "ceiling" if side == CEILING else "peer"
    row = {"name": side, "kind": kind, "what": describe(side, report.plan.job), "failure": report.failure(side)}
    rates = report.rates(side)
    if not rates:
        return row | {"images_per_second": None, "interval": None, "rounds": [], "stages": {}}
    turns = report.rounds.results[side]
    return row | {
        **_estimate(median_interval(rates), "images_per_second"),
        "rounds": rates,
        "first_batch_seconds": median(turn.first_batch_seconds for turn in turns),
        "stages": report.stages(side),
    }


def _estimate(found: Estimate, name: str) -> dict[str, Any]:
    return {name: found.median, "interval": [found.low, found.high], "coverage": found.coverage}


def describe(side: str, job: Job) -> str:
    """What a row measures, in a line."""
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
    scratch = file.with_name(f".{file.name}.new")
    scratch.write_text(json.dumps(as_json(report, command), indent=2) + "\n")
    os.replace(scratch, file)
