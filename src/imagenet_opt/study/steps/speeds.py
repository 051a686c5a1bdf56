"""Measures the speeds of a study's configurations, its rows, in rounds in which the rows take turns."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from statistics import median

from imagenet_opt.display.progress import duration, roughly
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.measure.telemetry.torch_profile import PERMISSION, LaunchGaps
from imagenet_opt.study.result_cache import ResultCache, say
from imagenet_opt.study.steps.compare import round_seconds
from imagenet_opt.study.steps.plan import Row, Study
from imagenet_opt.study.steps.turn import Speed, Speeds, in_order, measure

LEAST_ROUNDS = 2
"""One round gives no interval."""


def measure_speeds(study: Study, cache: ResultCache) -> Speeds:
    """Measure rounds of all rows: as many as requested, or as many as the budget allows.

    If a row fails, its reason is kept, and in a ladder the rows after it are trained without its step. If the first row
    fails, measuring ends with the complete rounds. stderr shows failures at once. Raises ConfigError if the first row
    has no complete round.
    """
    speeds = Speeds(study.rows)
    try:
        _measure_rounds(speeds, study, cache)
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


class _FirstRowFailed(Exception):
    """The first row failed, so nothing more can be compared."""


def _measure_rounds(speeds: Speeds, study: Study, cache: ResultCache) -> None:
    """In each round, measure the full pipeline of its rows, then the network alone of its rows."""
    failed_in = dict[str, int]()

    def fail(row: Row, number: int, reason: str) -> None:
        if row.step is None:
            speeds.turns = {name: turns[:number] for name, turns in speeds.turns.items() if number}
            raise _FirstRowFailed(reason)
        failed_in[row.name] = len(speeds.turns.pop(row.name, ()))  # with a full run, later rows already have its step
        speeds.failures[row.name] = f"in round {number + 1}: {reason}" if number else reason
        speeds.rows = study.plan.rows(failed_in)
        say(f"{row.name} failed: {speeds.failures[row.name]}")

    for number, label in enumerate(_rounds(study, speeds, cache)):
        for job, what in ((study.job, "full pipeline"), (replace(study.job, function="alone"), "network alone")):
            due = [row for row in in_order(speeds.rows, number) if row.name not in failed_in]
            for row, reason in measure(
                due,
                lambda name: next(row for row in speeds.rows if row.name == name),
                job,
                number=number,
                turns=speeds.turns,
                cache=cache,
                label=f"{label}: {what}",
            ):
                fail(row, number, reason)
        first = speeds.rows[0].name
        if number == 0 and (sentence := gaps(first, speeds.turns[first], has_gpu=study.plan.has_gpu)):
            say(sentence)


def _rounds(study: Study, speeds: Speeds, cache: ResultCache) -> Iterator[str]:
    """Yield a label of each round. With a budget, LEAST_ROUNDS rounds, then as many as have begun in an earlier call or
    as the time left is enough for."""
    request, job = study.request, replace(study.job, overrides=study.rows[0].overrides)
    if request.repeats is not None:
        yield from (f"round {number + 1} of {request.repeats}" for number in range(request.repeats))
        return
    deadline = Deadline(request.budget_seconds)
    for number in count():
        if number >= LEAST_ROUNDS and not cache.has(job, number, config=study.rows[0].config):
            seconds, left = round_seconds(speeds.turns), deadline.left()
            if seconds > left:
                say(f"no further round: it takes {roughly(seconds)}, and {duration(left)} of --budget are left")
                return
        yield f"round {number + 1}"


def gaps(name: str, turns: Sequence[Speed], *, has_gpu: bool) -> str | None:
    """A sentence about how much closing the gaps between kernels could gain. None without a GPU."""
    times = [(speed.get("step_seconds"), speed.get("kernel_seconds")) for speed in turns]
    if both := [(step, kernels) for step, kernels in times if step and kernels]:
        steps, kernels = zip(*both, strict=True)
        return f"{name}: {LaunchGaps(median(steps), median(kernels)).sentence()}."
    return f"{name}: kernel times could not be seen: {PERMISSION}." if has_gpu else None
