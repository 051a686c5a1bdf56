"""Measures the speed of each row, in rounds of turns; each turn has a process of its own."""

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from imagenet_opt.doctor.environment.neighbours import wait_for_others
from imagenet_opt.errors import ConfigError, ImagenetOptError, printable
from imagenet_opt.measure.stats.rounds import Deadline, TurnFailed
from imagenet_opt.measure.stats.sequential import is_look
from imagenet_opt.measure.telemetry.torch_profile import PERMISSION, LaunchGaps
from imagenet_opt.probe.isolated import Hung, call_isolated, limit
from imagenet_opt.probe.throwaway_run import removed_afterwards
from imagenet_opt.study.request import Request
from imagenet_opt.study.result_cache import ResultCache
from imagenet_opt.study.steps.plan import Row, Study
from imagenet_opt.study.steps.worker import SpeedJob

MOST_OTHERS_PERCENT = 10.0
"""Of the CPUs: if other programs use this much more than in a quarter of the turns, a turn is measured again."""
MOST_TRIES = 5
"""Of a turn; after so many disturbed tries, the least disturbed one counts."""
CALM_SECONDS = 30.0
"""To wait at most for other programs before a turn is measured again."""
LEAST_ROUNDS = 2
"""One round gives no interval."""
_COMPILING_SECONDS = 1800.0
"""Allowed for compiling in a turn, beside the limit of any call."""
Speed = dict[str, float | None]
"""The result of `worker.speed`."""


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


class _FirstRowFailed(Exception):
    """The first row failed, so nothing more can be compared."""


def measure_speeds(
    study: Study,
    cache: ResultCache,
    report: Callable[[str], None],
    undecided_rows: Callable[[Speeds], set[str]],
) -> Speeds:
    """Measure rounds of all rows, or of the `undecided_rows` until the budget is used up.

    If a row fails, its reason is kept, and in a ladder the rows after it are trained without its step. If the first row
    fails, measuring ends with the complete rounds. stderr shows failures at once. report: called with a description of
    each turn. Raises ConfigError if the first row has no complete round.
    """
    request = study.request
    speeds, failed_in = Speeds(study.rows, in_race=request.repeats is None), dict[str, int]()

    def turn(place: int) -> None:
        row = speeds.rows[place]
        number = len(speeds.turns.get(row.name, ()))
        try:
            speed = speed_of(job_of(row, study), row, number, request, cache, least_others(speeds.turns.values()))
        except TurnFailed as error:
            if row.step is None:
                raise _FirstRowFailed(str(error)) from error
            failed_in[row.name] = number
            speeds.rows = study.plan.rows(failed_in)
            speeds.turns.pop(row.name, None)
            speeds.failures[row.name] = f"{error}" if number == 0 else f"in round {number + 1}: {error}"
            _say(f"{row.name} failed: {speeds.failures[row.name]}")
            return
        speeds.turns.setdefault(row.name, []).append(speed)
        if row.step is None and number == 0 and (sentence := gaps(row.name, [speed])):
            _say(sentence)

    try:
        for number, (names, label) in enumerate(_rounds(request, speeds, undecided_rows)):
            first = number % len(speeds.rows)
            for place in (*range(first, len(speeds.rows)), *range(first)):
                name = speeds.rows[place].name
                if name in names and name not in speeds.failures:
                    report(f"{label}: {name}")
                    turn(place)
    except _FirstRowFailed as error:
        _end(speeds, request.name, str(error))
    return speeds


def _rounds(
    request: Request, speeds: Speeds, undecided_rows: Callable[[Speeds], set[str]]
) -> Iterator[tuple[set[str], str]]:
    """Yield the names of the rows of each round, and a label of the round.

    With a budget, all rows have LEAST_ROUNDS rounds; then the undecided rows have rounds as long as one more fits in.
    """
    names = {row.name for row in speeds.rows}
    if request.repeats is not None:
        yield from ((names, f"round {number + 1} of {request.repeats}") for number in range(request.repeats))
        return
    deadline, num_rows = Deadline(request.budget_seconds), len(names)
    for number in count():
        if is_look(number):
            names = undecided_rows(speeds)
        if number >= LEAST_ROUNDS:
            last_turns = [turns[-1].get("turn_seconds") or 0.0 for name, turns in speeds.turns.items() if name in names]
            if not names or sum(last_turns) > deadline.left():
                return
        decided = f", {num_rows - len(names)} of {num_rows} rows are decided" if number >= LEAST_ROUNDS else ""
        yield names, f"round {number + 1}{decided}"


def _end(speeds: Speeds, name: str, reason: str) -> None:
    """Keep only complete rounds. Raises ConfigError if there are none."""
    first = speeds.rows[0]
    num = len(speeds.turns.get(first.name, []))
    if not num:
        train = shlex.join(["python", "train.py", *first.overrides])
        raise ConfigError(
            f"study={name}: its first row, {first.name}, cannot be measured, and nothing without it: {reason}; fix "
            f"what stops this run: {train}"
        )
    speeds.turns = {row: turns[:num] for row, turns in speeds.turns.items()}
    speeds.ended = (
        f"Measuring ended in round {num + 1}, as {first.name} failed, with which all are compared: {reason}. "
        f"The complete rounds, {num}, are what the table shows; the same command tries the others again."
    )


def gaps(name: str, turns: list[Speed]) -> str | None:
    """A sentence about how much closing the gaps between kernels could gain. None without turns or without a GPU."""
    times = [(speed["step_seconds"], speed["kernel_seconds"]) for speed in turns]
    if both := [(step, kernels) for step, kernels in times if step and kernels]:
        steps, kernels = zip(*both, strict=True)
        return f"{name}: {LaunchGaps(median(steps), median(kernels)).sentence()}."
    on_gpu = any(kernels is not None for _, kernels in times)
    return f"{name}: kernel times could not be seen: {PERMISSION}." if on_gpu else None


def job_of(row: Row, study: Study) -> SpeedJob:
    beside = tuple(tuple(study.plan.words(step)) for step in study.plan.file.steps)
    return SpeedJob(row.overrides, study.request.seconds, study.cold, beside)


def speed_of(job: SpeedJob, row: Row, number: int, request: Request, cache: ResultCache, least_percent: float) -> Speed:
    """Measure turn `number` of the row. A disturbed turn is measured again, and the least disturbed try counts.

    least_percent: see least_others. The result also has turn_seconds, with the start of the process; num_discarded, the
    number of other tries; is_disturbed, 1 if all were disturbed. Raises TurnFailed.
    """

    def once() -> Speed:
        began = time.perf_counter()
        speed: Speed = isolated("speed", job, request, timed_seconds=job.seconds)  # type: ignore[assignment]
        return speed | {"turn_seconds": time.perf_counter() - began}

    def measure() -> Speed:
        tries = [once()]
        while (reason := disturbance(tries[-1], least_percent)) and len(tries) < MOST_TRIES:
            _say(f"{row.name}: measured again, as {reason}")
            wait_for_others(least_percent + MOST_OTHERS_PERCENT, limit_seconds=CALM_SECONDS)
            tries.append(once())
        quietest = min(tries, key=_disturbed_percent)
        return quietest | {"num_discarded": len(tries) - 1.0, "is_disturbed": float(reason is not None)}

    speed: Speed = cache.take(job, number, measure, config=row.config)
    return speed


def least_others(turns_by_row: Iterable[Sequence[Speed]]) -> float:
    """Percent of the CPUs that other programs use at most in a quarter of the turns; 0 without turns.

    On a machine that is busy all the time, a second try is no quieter than the first.
    """
    percents = sorted(speed.get("others_percent") or 0.0 for turns in turns_by_row for speed in turns)
    return percents[len(percents) // 4] if percents else 0.0


def disturbance(speed: Speed, least_percent: float) -> str | None:
    """What slowed a turn down from outside; None if nothing did. least_percent: see least_others."""
    if speed.get("clocks_lowered"):
        return "something lowered the GPU's clocks (heat, power)"
    others = speed.get("others_percent") or 0.0
    return f"others used {others:.0f} % of the CPUs" if others > least_percent + MOST_OTHERS_PERCENT else None


def _disturbed_percent(speed: Speed) -> float:
    return 100 * (speed.get("clocks_lowered") or 0.0) + (speed.get("others_percent") or 0.0)


def isolated(function: str, job: object, request: Request, *, timed_seconds: float) -> object:
    """Call a function of `worker` in a process of its own. Raises TurnFailed."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str((request.folder / "compiled").resolve())}
    seconds = _COMPILING_SECONDS + limit(timed_seconds)
    try:
        with removed_afterwards() as runs:
            name = f"imagenet_opt.study.steps.worker.{function}"
            return call_isolated(name, job, limit_seconds=seconds, environment={**cache, **runs})
    except Hung as error:
        hint = "it hangs or compiles for too long: leave it out in a study of your own, study=FILE.yaml"
        raise TurnFailed(f"{error}; {hint}") from error
    except ImagenetOptError as error:
        raise TurnFailed(str(error)) from error


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
