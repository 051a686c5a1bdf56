"""Runs what a study measures in processes of its own; measures the network alone."""

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.isolated import Hung, InTurns, call_isolated, in_turns, limit
from imagenet_opt.probe.throwaway_run import removed_afterwards
from imagenet_opt.study.result_cache import ResultCache, say
from imagenet_opt.study.steps.calm import Cycle, calm_cycles
from imagenet_opt.study.steps.plan import Row
from imagenet_opt.study.steps.worker import AloneJob

_COMPILING_SECONDS = 1800.0
"""Time for compiling, added to the time limit of a call."""
Speed = dict[str, float | None]
"""Results of a row in a round: of `worker.full`, and of `worker.alone` for the row, as far as they were measured."""


@dataclass
class Speeds:
    """Measured speeds.

    rows: the rows as measured. turns: by row, one per round. failures: by row, the reason. ended: the reason if
    measuring ended early. in_race: whether rows stop as soon as all their comparisons are decided. num_continued: how
    often the study went on after its budget had ended it.
    """

    rows: list[Row]
    turns: dict[str, list[Speed]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    ended: str | None = None
    in_race: bool = False
    num_continued: int = 0


def in_order(rows: Iterable[Row], number: int) -> list[Row]:
    """The rows in their order of round `number`: random, and reversed in every other round, because the speed of a row
    may depend by some percent on the rows that started before it. The first round has the order of the table."""
    shuffled = list(rows)
    if number > 1:
        random.Random(number // 2).shuffle(shuffled)
    return shuffled[::-1] if number % 2 else shuffled


def alone_jobs(rows: Sequence[Row], seconds: float) -> list[tuple[list[Row], AloneJob]]:
    """The measurements of a round of the network alone: rows that can share a process do so."""
    groups = [[row for row in rows if not row.makes_graphs], *([row] for row in rows if row.makes_graphs)]
    return [(group, _alone_job(group, seconds)) for group in groups if group]


def _alone_job(rows: Sequence[Row], seconds: float) -> AloneJob:
    names = tuple((row.name, row.overrides) for row in rows)
    return AloneJob(names, seconds, on_gpu=any(row.is_on_gpu for row in rows))


def measure_alone(
    rows: Sequence[Row], seconds: float, number: int, turns: dict[str, list[Speed]], cache: ResultCache, label: str
) -> dict[str, str]:
    """Measure the network alone in round `number`, or take the stored results, and add them to `turns`.

    A row that fails beside others is measured again by itself, since it may lack only their memory. Results also have
    alone_seconds, the row's share of the time. Returns the reasons of rows that fail by themselves.
    """
    beside, failures = dict[str, str](), dict[str, str]()
    jobs, least = alone_jobs(rows, seconds), least_others(turns.values())
    while jobs:
        group, job = jobs.pop(0)
        measure = partial(_alone, job, cache.folder, least)
        try:
            answer = cache.take(job, number, measure, config=[row.config for row in group], label=label)
        except TurnFailed as error:
            answer = {"rows": {}, "failures": {row.name: str(error) for row in group}}
        for row in group:
            if row.name not in answer["failures"]:
                add(turns, row.name, number, answer["rows"][row.name])
                if row.name in beside:
                    say(f"{row.name} failed beside other rows, so it was measured by itself: {beside[row.name]}")
            elif len(group) > 1:
                beside[row.name] = answer["failures"][row.name]
                jobs.append(([row], _alone_job([row], seconds)))
            else:
                failures[row.name] = answer["failures"][row.name]
    return failures


def _alone(job: AloneJob, folder: Path, least_percent: float | None) -> dict[str, Any]:
    """Measure the rows of the job in one process. Returns the results, and the reasons of failures, by row."""
    began = time.perf_counter()
    timed_seconds = job.seconds * len(job.rows)
    with in_own_process("alone", job, folder, timed_seconds=timed_seconds, stops=True) as process:
        process.turn()

        def cycle() -> Cycle | None:
            report = process.turn()
            if report is None:
                return None
            return Cycle(report["windows"], clocks_lowered=report["clocks_lowered"])

        calm = calm_cycles(cycle, seconds=job.seconds, least_percent=least_percent)
        rest = process.end()
    if len(job.rows) == 1 and rest["failures"]:
        raise TurnFailed(*rest["failures"].values())
    seconds = (time.perf_counter() - began) / len(job.rows)
    rows: dict[str, Speed] = {}
    for name in calm.rates.keys() - rest["failures"].keys():
        step_seconds, kernel_seconds = rest["batch_sizes"][name] / calm.rates[name], rest["kernels"].get(name)
        rows[name] = {"compute": calm.rates[name], "step_seconds": step_seconds, "kernel_seconds": kernel_seconds}
        rows[name] |= {"alone_seconds": seconds, "alone_others_percent": calm.others_percent}
        rows[name] |= {"num_discarded_alone": calm.num_discarded / len(job.rows)}
    return {"rows": rows, "failures": rest["failures"]}


def add(turns: dict[str, list[Speed]], name: str, number: int, values: Speed) -> None:
    """Add results of round `number`; rounds in which the row was not measured are empty."""
    rounds = turns.setdefault(name, [])
    rounds += [{} for _ in range(len(rounds), number + 1)]
    rounds[number] = rounds[number] | values


def busy(speed: Speed) -> float:
    """Share of a full run in which kernels ran; if they were not observed, in which the device had work."""
    if (kernel_seconds := speed.get("kernel_seconds")) and speed["batch_size"]:
        return min(1.0, kernel_seconds * (speed["full"] or 0.0) / speed["batch_size"])
    return speed["busy"] or 0.0


def least_others(turns_by_row: Iterable[Sequence[Speed]], key: str = "others_percent") -> float | None:
    """Percent of the CPUs that other programs use at most in the calmest quarter of the turns; None without turns. key:
    of the percentage in a turn."""
    percents = sorted(percent for turns in turns_by_row for speed in turns if (percent := speed.get(key)) is not None)
    return percents[len(percents) // 4] if percents else None


@contextmanager
def in_own_process(function: str, job: object, folder: Path, *, timed_seconds: float, stops: bool) -> Iterator[InTurns]:
    """Call a function of `worker` in turns in a process of its own. folder: keeps the compiled code. stops: see
    `in_turns`. Raises TurnFailed."""
    with (
        _settings(folder, timed_seconds) as settings,
        in_turns(_name(function), job, stops=stops, **settings) as process,
    ):
        yield process


def isolated(function: str, job: object, folder: Path, *, timed_seconds: float) -> object:
    """Call a function of `worker` in a process of its own. folder: keeps the compiled code. Raises TurnFailed."""
    with _settings(folder, timed_seconds) as settings:
        return call_isolated(_name(function), job, **settings)


def _name(function: str) -> str:
    return f"imagenet_opt.study.steps.worker.{function}"


@contextmanager
def _settings(folder: Path, timed_seconds: float) -> Iterator[dict[str, Any]]:
    """Time limit and environment of a process. Its run folders are removed afterwards, and its errors become
    TurnFailed."""
    with removed_afterwards() as runs, reasons():
        environment = {"TORCHINDUCTOR_CACHE_DIR": str((folder / "compiled").resolve()), **runs}
        yield {"limit_seconds": _COMPILING_SECONDS + limit(timed_seconds), "environment": environment}


@contextmanager
def reasons() -> Iterator[None]:
    """Turn all errors of a process into TurnFailed."""
    try:
        yield
    except Hung as error:
        hint = "it hangs or compiles for too long: leave it out in a study of your own, study=FILE.yaml"
        raise TurnFailed(f"{error}; {hint}") from error
    except ImagenetOptError as error:
        raise TurnFailed(str(error)) from error
