"""Measures the speeds of a study's configurations, its rows, in rounds in which the rows take turns."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import median

from imagenet_opt.display.progress import duration, roughly
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.measure.stats.sequential import is_look
from imagenet_opt.measure.telemetry.torch_profile import PERMISSION, LaunchGaps
from imagenet_opt.study.request import Request
from imagenet_opt.study.result_cache import ResultCache, say
from imagenet_opt.study.steps.compare import MEASURES, are_decided, round_seconds, undecided_rows
from imagenet_opt.study.steps.pipelines import measure_full
from imagenet_opt.study.steps.plan import Row, Study
from imagenet_opt.study.steps.turn import Speed, Speeds, in_order, measure_alone

LEAST_ROUNDS = 2
"""One round gives no interval."""


@dataclass(frozen=True)
class Finish:
    """Identifies a stored answer, whose number is a number of rounds: the budget ended the study after these rounds."""

    seconds: float


@dataclass(frozen=True)
class Begun:
    """Identifies a stored answer, whose number is that of a round after the first ones: by measure, its rows."""

    seconds: float


def measure_speeds(study: Study, cache: ResultCache) -> Speeds:
    """Measure rounds of all rows, or of the undecided rows until the budget is used up.

    If a row fails, its reason is kept, and in a ladder the rows after it are trained without its step. If the first row
    fails, measuring ends with the complete rounds. stderr shows failures at once. Raises ConfigError if the first row
    has no complete round.
    """
    speeds = Speeds(study.rows, in_race=study.request.repeats is None)
    try:
        _measure_rounds(speeds, study, cache)
        if speeds.in_race:
            speeds.num_continued = _finish(study, max(map(len, speeds.turns.values())), cache)
    except _FirstRowFailed as error:
        first = speeds.rows[0]
        num = len(speeds.turns.get(first.name, ()))
        if not num:
            train = shlex.join(["python", "train.py", *first.overrides])
            raise ConfigError(
                f"study={study.request.name}: the first row, {first.name}, with which all rows are compared, cannot be "
                f"measured: {error}; fix the error of this run: {train}"
            ) from error
        speeds.ended = (
            f"Measuring ended in round {num + 1}, as {first.name} failed, and all rows are compared with {first.name}: "
            f"{error}. The table shows the {num} complete rounds; the same command measures the missing ones."
        )
    return speeds


def _finish(study: Study, num_rounds: int, cache: ResultCache) -> int:
    """Store that the budget ended the study after these rounds. Returns how often it ended after fewer rounds."""
    finish, config = Finish(study.request.seconds), [row.config for row in study.rows]
    if not cache.has(finish, num_rounds, config=config):
        cache.put(finish, num_rounds, True, config=config, is_measurement=False)
    return sum(cache.has(finish, number, config=config) for number in range(num_rounds))


class _FirstRowFailed(Exception):
    """The first row failed, so nothing more can be compared."""


def _measure_rounds(speeds: Speeds, study: Study, cache: ResultCache) -> None:
    """In each round, measure the full pipeline of its rows, then the network alone of its rows."""
    failed_in, single = dict[str, int](), set[str]()

    def fail(row: Row, number: int, reason: str) -> None:
        if row.step is None:
            speeds.turns = {name: turns[:number] for name, turns in speeds.turns.items() if number}
            raise _FirstRowFailed(reason)
        failed_in[row.name] = len(speeds.turns.pop(row.name, ()))  # with a full run, later rows already have its step
        speeds.failures[row.name] = f"in round {number + 1}: {reason}" if number else reason
        speeds.rows = study.plan.rows(failed_in)
        say(f"{row.name} failed: {speeds.failures[row.name]}")

    for number, (names, label) in enumerate(_rounds(study.request, speeds, cache)):
        due = [row.name for row in in_order(speeds.rows, number) if row.name in names["full"] - failed_in.keys()]
        for row, reason in measure_full(
            due,
            lambda name: next(row for row in speeds.rows if row.name == name),
            lambda row: replace(study.job, overrides=row.overrides),
            number=number,
            turns=speeds.turns,
            cache=cache,
            label=f"{label}: full pipeline: ",
            single=single,
        ):
            fail(row, number, reason)
        rows = [row for row in in_order(speeds.rows, number) if row.name in names["compute"] - failed_in.keys()]
        seconds, title = study.request.seconds, f"{label}: network alone"
        failures = measure_alone(rows, seconds, number, speeds.turns, cache, title)
        for row in rows:
            if row.name in failures:
                fail(row, number, failures[row.name])
        first = speeds.rows[0].name
        if number == 0 and (sentence := gaps(first, speeds.turns[first], has_gpu=study.plan.has_gpu)):
            say(sentence)


def _rounds(request: Request, speeds: Speeds, cache: ResultCache) -> Iterator[tuple[dict[str, set[str]], str]]:
    """Yield the names of the rows of each round, by measure, and a label of the round.

    With a budget, all rows have LEAST_ROUNDS rounds; then the undecided rows have rounds as long as the time left is
    enough for one more. Rounds that began in an earlier run are repeated with the same rows, from stored results,
    whatever the budget is.
    """
    everyone = {measure: {row.name for row in speeds.rows} for measure in MEASURES}
    if request.repeats is not None:
        yield from ((everyone, f"round {number + 1} of {request.repeats}") for number in range(request.repeats))
        return
    deadline, state, begun = Deadline(request.budget_seconds), "", Begun(request.seconds)
    names: dict[str, set[str]] | None = None  # chosen at a look, and for the first round that is not stored
    for number in count():
        if is_look(number):
            decided = are_decided(speeds.rows, speeds.turns)
            state = f", {sum(decided)} of {len(decided)} steps decided"
        label = f"round {number + 1}{state}"
        if number < LEAST_ROUNDS:
            yield everyone, label
            continue
        config = [row.config for row in speeds.rows if row.name in speeds.turns]
        if (stored := cache.get(begun, number, config=config)) is not None:
            names = None
            yield {measure: set(some) for measure, some in stored.items()}, label
            continue
        left = deadline.left()
        if names is None or is_look(number):
            names = undecided_rows(speeds.rows, speeds.turns, num_rounds=number, seconds_left=left)
        names = {measure: some & speeds.turns.keys() for measure, some in names.items()}  # a row may have failed
        if not _has_time(speeds, names, left):
            return
        answer = {measure: sorted(some) for measure, some in names.items()}
        cache.put(begun, number, answer, config=config, is_measurement=False)
        yield names, label


def _has_time(speeds: Speeds, names: dict[str, set[str]], left: float) -> bool:
    """Whether these rows, if any, can have a further round in the seconds left; if not, print why."""
    seconds = round_seconds(speeds.turns, names)
    if seconds > left:
        say(f"no further round: it takes {roughly(seconds)}, and {duration(left)} of --budget are left")
    return any(names.values()) and seconds <= left


def gaps(name: str, turns: Sequence[Speed], *, has_gpu: bool) -> str | None:
    """A sentence about how much closing the gaps between kernels could gain. None without a GPU."""
    times = [(speed.get("step_seconds"), speed.get("kernel_seconds")) for speed in turns]
    if both := [(step, kernels) for step, kernels in times if step and kernels]:
        steps, kernels = zip(*both, strict=True)
        return f"{name}: {LaunchGaps(median(steps), median(kernels)).sentence()}."
    return f"{name}: kernel times could not be seen: {PERMISSION}." if has_gpu else None
