"""Runs the turns of rows in processes of their own, and measures a disturbed turn again."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagenet_opt.doctor.environment.neighbours import wait_for_others
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.isolated import Hung, call_isolated, limit
from imagenet_opt.probe.throwaway_run import removed_afterwards
from imagenet_opt.study.result_cache import ResultCache, say
from imagenet_opt.study.steps.plan import Row
from imagenet_opt.study.steps.worker import MOST_CYCLES, MOST_OTHERS_PERCENT, NUM_CYCLES, AloneJob, FullJob

MOST_TRIES = 5
"""Tries of one turn; after so many disturbed tries, the least disturbed try counts."""
CALM_SECONDS = 30.0
"""Longest wait for other programs before a turn is measured again."""
_COMPILING_SECONDS = 1800.0
"""Time for compiling, added to the time limit of a call."""
Speed = dict[str, float | None]
"""Results of a row in a round: of `worker.full`, and of `worker.alone` for the row, as far as they were measured."""


@dataclass
class Speeds:
    """Measured speeds.

    rows: the rows as measured. turns: by row, one per round. failures: by row, the reason. ended: the reason if
    measuring ended early. in_race: whether rows stop as soon as all their comparisons are decided.
    """

    rows: list[Row]
    turns: dict[str, list[Speed]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    ended: str | None = None
    in_race: bool = False


def alone_jobs(rows: Sequence[Row], seconds: float) -> list[tuple[list[Row], AloneJob]]:
    """The measurements of a round of the network alone: rows that can share a process do so."""
    groups = [[row for row in rows if not row.makes_graphs], *([row] for row in rows if row.makes_graphs)]
    return [(group, _alone_job(group, seconds)) for group in groups if group]


def _alone_job(rows: Sequence[Row], seconds: float) -> AloneJob:
    return AloneJob(tuple((row.name, row.overrides) for row in rows), seconds)


def measure_alone(
    rows: Sequence[Row], seconds: float, number: int, turns: dict[str, list[Speed]], cache: ResultCache, label: str
) -> dict[str, str]:
    """Measure the network alone in round `number`, or take the stored results, and add them to `turns`.

    A row that fails beside others is measured again by itself, since it may lack only their memory. Results also have
    alone_seconds, the row's share of the time. Returns the reasons of rows that fail by themselves.
    """
    failures, jobs = {}, alone_jobs(rows, seconds)
    while jobs:
        group, job = jobs.pop(0)

        def measure(job: AloneJob = job) -> dict[str, Any]:
            began = time.perf_counter()
            timed_seconds = job.seconds * len(job.rows) * MOST_CYCLES / NUM_CYCLES
            answer: Any = isolated("alone", job, cache.folder, timed_seconds=timed_seconds)
            if len(job.rows) == 1 and answer["failures"]:
                raise TurnFailed(*answer["failures"].values())
            return {**answer, "seconds": (time.perf_counter() - began) / len(job.rows)}

        try:
            answer = cache.take(job, number, measure, config=[row.config for row in group], label=label)
        except TurnFailed as error:
            answer = {"rows": {}, "failures": {row.name: str(error) for row in group}}
        for row in group:
            if row.name in answer["failures"]:
                if len(group) > 1:
                    jobs.append(([row], _alone_job([row], seconds)))
                else:
                    failures[row.name] = answer["failures"][row.name]
            else:
                counts = {name: answer[name] for name in ("num_cycles", "num_discarded_cycles")}
                shared = {"alone_seconds": answer["seconds"], "alone_others_percent": answer["others_percent"]}
                _add(turns, row.name, number, {**answer["rows"][row.name], **counts, **shared})
    return failures


def _add(turns: dict[str, list[Speed]], name: str, number: int, values: Speed) -> None:
    """Add results of round `number`; rounds in which the row was not measured are empty."""
    rounds = turns.setdefault(name, [])
    rounds += [{} for _ in range(len(rounds), number + 1)]
    rounds[number] = rounds[number] | values


def take_turn(
    row: Row, job: FullJob, number: int, turns: dict[str, list[Speed]], cache: ResultCache, label: str
) -> None:
    """Measure the full pipeline of the row in round `number`, or take its stored result, and add it to `turns`.

    A disturbed turn is measured again, and the least disturbed try counts. The result also has turn_seconds, with the
    start of the process; num_discarded, the number of other tries; is_disturbed, 1 if all were disturbed. label: for
    the report of a new measurement. Raises TurnFailed.
    """
    least_percent = least_others(turns.values())

    def once() -> Speed:
        began = time.perf_counter()
        speed: Speed = isolated("full", job, cache.folder, timed_seconds=job.seconds)  # type: ignore[assignment]
        return speed | {"turn_seconds": time.perf_counter() - began}

    def measure() -> Speed:
        tries = [once()]
        while (reason := disturbance(tries[-1], least_percent)) and len(tries) < MOST_TRIES:
            say(f"{row.name}: measured again, as {reason}")
            wait_for_others(least_percent + MOST_OTHERS_PERCENT, limit_seconds=CALM_SECONDS)
            tries.append(once())
        calmest = min(tries, key=_disturbed_percent)
        return calmest | {"num_discarded": len(tries) - 1.0, "is_disturbed": float(reason is not None)}

    _add(turns, row.name, number, cache.take(job, number, measure, config=row.config, label=label))


def least_others(turns_by_row: Iterable[Sequence[Speed]]) -> float:
    """Percent of the CPUs that other programs use at most in the calmest quarter of the turns; 0 without turns.

    On a machine that is always busy, a second try is as disturbed as the first.
    """
    percents = sorted(
        percent for turns in turns_by_row for speed in turns if (percent := speed.get("others_percent")) is not None
    )
    return percents[len(percents) // 4] if percents else 0.0


def disturbance(speed: Speed, least_percent: float) -> str | None:
    """Cause outside of the turn that slowed it down; None without one. least_percent: see least_others."""
    if speed.get("clocks_lowered"):
        return "something lowered the GPU's clocks (heat, power)"
    others = speed.get("others_percent") or 0.0
    return f"others used {others:.0f} % of the CPUs" if others > least_percent + MOST_OTHERS_PERCENT else None


def _disturbed_percent(speed: Speed) -> float:
    return 100 * (speed.get("clocks_lowered") or 0.0) + (speed.get("others_percent") or 0.0)


def isolated(function: str, job: object, folder: Path, *, timed_seconds: float) -> object:
    """Call a function of `worker` in a process of its own. folder: keeps the compiled code. Raises TurnFailed."""
    compiled = {"TORCHINDUCTOR_CACHE_DIR": str((folder / "compiled").resolve())}
    name = f"imagenet_opt.study.steps.worker.{function}"
    try:
        with removed_afterwards() as runs:
            seconds = _COMPILING_SECONDS + limit(timed_seconds)
            return call_isolated(name, job, limit_seconds=seconds, environment={**compiled, **runs})
    except Hung as error:
        hint = "it hangs or compiles for too long: leave it out in a study of your own, study=FILE.yaml"
        raise TurnFailed(f"{error}; {hint}") from error
    except ImagenetOptError as error:
        raise TurnFailed(str(error)) from error
