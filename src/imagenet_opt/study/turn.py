"""Measures the rows of a study in rounds: each turn of a row is a process of its own, which times the network alone and
the full pipeline."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

from lightning.pytorch import seed_everything

from imagenet_opt.compare.gain import Gain, Pair, gains
from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.compare.rounds import LEAST_ROUNDS, Rounds, while_time_is_left
from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import train_program
from imagenet_opt.display.progress import as_budget, duration, roughly, say
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure.stats.rounds import Deadline, TurnFailed
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.probe.isolated import call_isolated, limit
from imagenet_opt.probe.memory import named_out_of_memory
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span, fit_ceiling
from imagenet_opt.probe.throwaway_run import removed_afterwards
from imagenet_opt.study.plan import Study, StudyRow

STOPS = "callbacks.acceleration.on_failure=stop"
"""A configuration that does not compile fails instead of training uncompiled."""
SEED = 0
"""Chooses the files that turns read: all turns read the same files, so these are in memory after the first turn."""
MEASURES = {"compute": "network alone", "full": "full pipeline"}
"""By field of a StudyTurn, its name for people."""
_COMPILING_SECONDS = 1800.0
"""Time for compiling, added to the time limit of a process."""


@dataclass(frozen=True)
class TurnJob:
    """overrides: of train.py. seconds: of each timed stretch. cold: whether files are evicted from the page cache."""

    overrides: tuple[str, ...]
    seconds: float
    cold: bool


@dataclass(frozen=True)
class StudyTurn:
    """What one process measured.

    full, compute: images per second of the full pipeline and of the network alone. busy: share of the full run in which
    the device had work; on a CPU, in which the process was inside a step. memory_gib: peak of the full run, reserved on
    the GPU or of the process. compile_seconds: includes the capture of a CUDA graph, None without compilation. seconds:
    duration with the start of the process.
    """

    full: float
    compute: float
    busy: float
    memory_gib: float
    compile_seconds: float | None
    batch_size: int
    seconds: float = 0.0


class Worths(dict[str, Gain]):
    """Gain of a step by measure; empty if nothing was compared."""

    @property
    def verdicts(self) -> set[str]:
        return {worth.verdict for worth in self.values()}

    @property
    def is_gain(self) -> bool:
        """Whether one measure is faster and none is slower."""
        return "faster" in self.verdicts and "slower" not in self.verdicts

    def __str__(self) -> str:
        return ", ".join(f"{MEASURES[measure]} {worth}" for measure, worth in self.items())


@dataclass(frozen=True)
class RowResult:
    """turns: one per round; empty if the row failed in the first round. failure: the reason, if it failed. worth: gain
    of its step. together: gain over the first row, for the last row of a ladder only."""

    row: StudyRow
    turns: Sequence[StudyTurn]
    failure: str | None
    worth: Worths
    together: Worths

    def rates(self, measure: str) -> list[float]:
        return [getattr(turn, measure) for turn in self.turns]


def measure_speeds(study: Study, cache: ResultCache) -> list[RowResult]:
    """Measure as many rounds as requested, or as the budget allows; return the results in the order of the rows.

    In a ladder, the rows after a row that failed in the first round lack its step. A row that fails later keeps its
    rounds. stderr shows failures at once. Raises ConfigError if the first row fails in the first round, or if the
    budget is too short for LEAST_ROUNDS of turns that take as long as the first.
    """
    request, first, failed_first = study.request, study.rows[0], set[str]()
    rows, rounds = {row.name: row for row in study.rows}, Rounds[StudyTurn]({row.name: [] for row in study.rows})
    of = "" if request.repeats is None else f" of {request.repeats}"
    deadline = Deadline(request.budget_seconds)

    def turn(name: str, number: int) -> StudyTurn:
        found = stored_turn(rows[name], number, study, cache, f"round {number + 1}{of}: {name}")
        if number == 0 and name == first.name:
            _check_budget(study, cache, found.seconds, deadline)
        return found

    def leave_out(name: str, number: int, reason: str) -> None:
        if number == 0 and name == first.name:
            train = f"{train_program()} {shlex.join(first.overrides)}"
            raise ConfigError(
                f"study={request.name}: the first row, {name}, with which all rows are compared, cannot be measured: "
                f"{reason}; fix the error of this run: {train}"
            )
        if number == 0:
            failed_first.add(name)
            rows.update({row.name: row for row in study.plan.rows(failed_first)})
        rounds.failures[name] = f"in round {number + 1}: {reason}"
        say(f"{name} failed {rounds.failures[name]}")

    numbers = while_time_is_left(
        deadline,
        lambda: _round_seconds(rounds.complete),
        lambda number: cache.has(key_of_turn(first, number)),
    )
    planned = numbers if request.repeats is None else range(request.repeats)
    rounds.run(turn, takewhile(lambda _: first.name not in rounds.failures, planned), leave_out)
    return results_of(list(rows.values()), rounds, is_ladder=study.plan.file.order == "cumulative")


def _check_budget(study: Study, cache: ResultCache, turn_seconds: float, deadline: Deadline) -> None:
    """Print how long the missing turns take. Raises ConfigError if a budget is too short for LEAST_ROUNDS of them."""
    num = study.request.repeats or LEAST_ROUNDS
    turns = (key_of_turn(row, number) for row in study.rows for number in range(num))
    if not (needed := turn_seconds * cache.num_missing(turns)):
        return
    takes = (
        f"{num} rounds of {len(study.rows)} rows take {roughly(needed)} at {duration(turn_seconds)} a turn, and longer "
    )
    takes += "where a row compiles"
    if deadline.seconds and deadline.left() < needed:
        remedy = f"use --budget {as_budget(needed)}, or a file with fewer steps (study=mine.yaml)"
        raise ConfigError(f"study={study.request.name}: {takes}; fewer decide next to nothing: {remedy}")
    say(takes if num >= LEAST_ROUNDS else f"{takes}; fewer than {LEAST_ROUNDS} rounds decide next to nothing")


def results_of(rows: Sequence[StudyRow], rounds: Rounds[StudyTurn], *, is_ladder: bool) -> list[RowResult]:
    """Compare each row with its base; a row without turns, or whose base has none, has no gain."""
    turns = {name: of_row for name, of_row in rounds.results.items() if of_row}
    pairs = [row.pair for row in rows if row.pair and turns.keys() >= set(row.pair)]
    built_on = [row for row in rows if row.name in turns and row.step and not row.step.instead_of]
    last = {(row.name, rows[0].name) for row in built_on[-1:] if is_ladder}
    worths = worths_of(turns, [*pairs, *last])
    return [
        RowResult(
            row,
            turns.get(row.name, []),
            rounds.failures.get(row.name),
            worth=worths.get(row.pair or ("", ""), Worths()),
            together=worths[pair] if (pair := (row.name, rows[0].name)) in last else Worths(),
        )
        for row in rows
    ]


def worths_of(turns: Mapping[str, Sequence[StudyTurn]], pairs: Sequence[Pair]) -> dict[Pair, Worths]:
    """Compare the first row of each pair with the second; all intervals hold simultaneously."""
    worths, seconds = {pair: Worths() for pair in pairs}, _round_seconds(turns)
    for measure in MEASURES:
        rates = {name: [getattr(turn, measure) for turn in of_row] for name, of_row in turns.items()}
        num = len(MEASURES) * len(pairs)
        for pair, gain in gains(rates, pairs, num_comparisons=num, round_seconds=seconds).items():
            worths[pair][measure] = gain
    return worths


def _round_seconds(turns: Mapping[str, Sequence[StudyTurn]]) -> float:
    return sum(median(turn.seconds for turn in of_row) for of_row in turns.values() if of_row)


def key_of_turn(row: StudyRow, number: int) -> dict[str, object]:
    """Identifies the stored result of a row in round `number`."""
    return {"row": row.name, "config": row.config, "round": number}


def stored_turn(row: StudyRow, number: int, study: Study, cache: ResultCache, label: str) -> StudyTurn:
    """The stored turn of a row in round `number`; if there is none, measure it in a process of its own. Raises
    TurnFailed."""
    job = TurnJob(row.overrides, study.request.seconds, study.cold)

    def measure() -> dict[str, Any]:
        began = time.perf_counter()
        values = apart(f"{__name__}.measured", job, cache.folder, timed_seconds=2 * job.seconds)
        return {**values, "seconds": time.perf_counter() - began}

    return StudyTurn(**cache.take(key_of_turn(row, number), measure, label))


def apart(function: str, job: object, folder: Path, *, timed_seconds: float, **environment: str) -> Any:
    """Call a function that trains, in a process of its own whose run folders are removed afterwards. folder: keeps the
    compiled code. environment: more variables of the process. Raises TurnFailed."""
    with removed_afterwards() as runs:
        environment |= {"TORCHINDUCTOR_CACHE_DIR": str((folder / "compiled").resolve()), **runs}
        seconds = _COMPILING_SECONDS + limit(timed_seconds)
        try:
            return call_isolated(function, job, limit_seconds=seconds, environment=environment)
        except ImagenetOptError as error:
            raise TurnFailed(str(error)) from error


def measured(job: TurnJob) -> dict[str, Any]:
    """Measure the full pipeline, then the network alone, in the process of the turn; a StudyTurn as plain values.

    Raises ImagenetOptError; OutOfMemory instead of halving micro-batches.
    """
    config = composed((*job.overrides, STOPS))
    seed_everything(config.seed, verbose=False)
    testbed = Testbed(config, compared=True, seed=None if job.cold else SEED)
    batch_size = testbed.loading.batch_size
    with named_out_of_memory(testbed.config):
        run, full = testbed.full_run(job.seconds, cold=job.cold)
        memory_gib = peak_gib(testbed.device)
        testbed.samples.read_few()
        alone = testbed.compute(Span(job.seconds), beside=False)
    turn = StudyTurn(
        full=full,
        compute=fit_ceiling(alone).images_per_second,
        busy=min(1.0, run.device_seconds * full / batch_size),
        memory_gib=memory_gib,
        compile_seconds=run.compile_seconds,
        batch_size=batch_size,
    )
    return asdict(turn)
