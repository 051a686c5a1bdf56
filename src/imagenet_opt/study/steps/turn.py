"""Runs the turns of a study of steps, each in a process of its own."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.isolated import Hung, call_isolated, limit
from imagenet_opt.probe.throwaway_run import removed_afterwards
from imagenet_opt.study.result_cache import ResultCache
from imagenet_opt.study.steps.plan import Row
from imagenet_opt.study.steps.worker import Function, RowJob

_COMPILING_SECONDS = 1800.0
"""Time for compiling, added to the time limit of a call."""
SECONDS: dict[Function, str] = {"full": "turn_seconds", "alone": "alone_seconds"}
"""By function of `worker`, the result that says how long its turn took."""
Speed = dict[str, float | None]
"""Results of a row in a round: of `worker.full`, and of `worker.alone` for the row, as far as they were measured."""


@dataclass
class Speeds:
    """Measured speeds.

    rows: the rows as measured. turns: by row, one per round. failures: by row, the reason. ended: the reason if
    measuring ended early.
    """

    rows: list[Row]
    turns: dict[str, list[Speed]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    ended: str | None = None


def in_order(rows: Iterable[Row], number: int) -> list[Row]:
    """The rows in their order of round `number`: random, and reversed in every other round, because the speed of a row
    may depend by some percent on the rows that started before it. The first round has the order of the table."""
    shuffled = list(rows)
    if number > 1:
        random.Random(number // 2).shuffle(shuffled)
    return shuffled[::-1] if number % 2 else shuffled


def measure(
    rows: Iterable[Row],
    row_of: Callable[[str], Row],
    job: RowJob,
    *,
    number: int,
    turns: dict[str, list[Speed]],
    cache: ResultCache,
    label: str,
) -> Iterator[tuple[Row, str]]:
    """Measure what `job` says of each row in round `number`, one after the other, each in a process of its own, or take
    the stored results, and add them to `turns`; they have the seconds of the turn, too.

    Yields each row that fails, with the reason; then `row_of` may return another row for a name. label: for the report
    of a new measurement.
    """
    for name in [row.name for row in rows]:
        row = row_of(name)
        own = replace(job, overrides=row.overrides)
        try:
            speed = cache.take(
                own, number, partial(_timed, own, cache.folder), config=row.config, label=f"{label}: {name}"
            )
        except TurnFailed as error:
            yield row, str(error)
        else:
            add(turns, name, number, speed)


def _timed(job: RowJob, folder: Path) -> Speed:
    began = time.perf_counter()
    speed: Any = isolated(job.function, job, folder, timed_seconds=job.seconds)
    return {**speed, SECONDS[job.function]: time.perf_counter() - began}


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


def isolated(function: str, job: object, folder: Path, *, timed_seconds: float) -> object:
    """Call a function of `worker` in a process of its own. folder: keeps the compiled code. The run folders of the
    process are removed afterwards. Raises TurnFailed."""
    with removed_afterwards() as runs:
        environment = {"TORCHINDUCTOR_CACHE_DIR": str((folder / "compiled").resolve()), **runs}
        seconds = _COMPILING_SECONDS + limit(timed_seconds)
        try:
            name = f"imagenet_opt.study.steps.worker.{function}"
            return call_isolated(name, job, limit_seconds=seconds, environment=environment)
        except Hung as error:
            hint = "it hangs or compiles for too long: leave it out in a study of your own, study=FILE.yaml"
            raise TurnFailed(f"{error}; {hint}") from error
        except ImagenetOptError as error:
            raise TurnFailed(str(error)) from error
