"""Studies of steps, such as the ladder: what each of a list of overrides brings, and whether the loss stays."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from imagenet_opt.config.build import precision_of
from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import check_writable_experiments, unwritable
from imagenet_opt.display.progress import announced
from imagenet_opt.display.table import Sheet
from imagenet_opt.errors import ConfigError, printable
from imagenet_opt.measure.stats.rounds import TurnFailed, interleave
from imagenet_opt.measure.storage.page_cache import MOSTLY
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.request import Request, checked_options
from imagenet_opt.study.result_cache import Kept
from imagenet_opt.study.steps.apply import keep_winners
from imagenet_opt.study.steps.isolated_turns import num_missing, plain, speed_of
from imagenet_opt.study.steps.losses import compare_losses
from imagenet_opt.study.steps.outcome import Outcome, Speed
from imagenet_opt.study.steps.plan import Plan, Row, StepsFile, check_rows
from imagenet_opt.study.steps.table import gaps, sheets
from imagenet_opt.study.steps.worker import SpeedJob


@dataclass(frozen=True)
class Storage:
    """Of which it is asked once in a study whether its files are in memory, as measuring brings them there."""

    folder: str


class _FirstRowFailed(Exception):
    """Nothing more can be compared."""


def run(request: Request) -> list[Sheet]:
    """Measure all rows in turns, then their losses. Raises ImagenetOptError."""
    kept = Kept(request.folder)
    outcome = begin(request, kept)
    _tell_coming(outcome)
    first = _job(outcome.plan.rows[0], outcome)
    kept.ask({"job": asdict(first), "config": plain(first.overrides)})
    kept.tell_kept()
    with kept.told_if_stopped():
        jobs = [_job(row, outcome) for row in outcome.plan.rows]
        with announced(sum(num_missing(job, request.repeats, kept) for job in jobs)) as announce:
            measure_speeds(outcome, kept, kept.once_measured(announce))
        with announced(None) as announce:
            announce = kept.once_measured(announce)
            if request.parity_steps:
                compare_losses(outcome, kept, announce)
            if not request.apply:
                return sheets(outcome)
            return [*sheets(outcome), keep_winners(outcome, kept, announce)]


def begin(request: Request, kept: Kept) -> Outcome:
    """Nothing measured yet, except whether the data is in memory. Raises ConfigError for a study that cannot be."""
    config = composed(request.overrides)
    if "rehearsal" in config.callbacks:
        raise ConfigError("a study measures the network itself, which a rehearsal does not run; leave rehearse= out")
    file = checked_options(StepsFile, request)
    if request.apply:
        check_writable_experiments()
        _check_representable(file)
    testbed = Testbed(composed((*request.overrides, *file.below)))
    mixed = precision_of("mixed", testbed.device)
    has_gpu = testbed.device.type == "cuda"
    plan = Plan(file, request.overrides, batch_size=testbed.how.batch_size, has_gpu=has_gpu, mixed=mixed)
    check_rows(plan)  # mistakes first
    _tell_replaced(plan, request)
    storage = Storage(str(testbed.samples.index.folder))
    cold = kept.take(storage, 0, lambda: (testbed.samples.residency().share or 0.0) < MOSTLY)
    return Outcome(plan, request, cold=bool(cold))


def _check_representable(file: StepsFile) -> None:
    """Whether an experiment can hold what the study may find. Raises ConfigError."""
    for word in (*file.lasting, *(word for step in file.steps for word in step.overrides)):
        if reason := unwritable(word):
            raise ConfigError(f"--apply: {word} {reason}; leave --apply out, or say keys in the study's file")


def _tell_replaced(plan: Plan, request: Request) -> None:
    if pairs := plan.replaced():
        told = ", ".join(f"{given} (it starts with {start})" for given, start in pairs)
        print(printable(f"study={request.name} replaces what the command line says: {told}"), file=sys.stderr)


def _tell_coming(outcome: Outcome) -> None:
    """On stderr, what is measured and what is not."""
    plan, request = outcome.plan, outcome.request
    for reason in plan.left_out():
        print(printable(f"left out, as {reason}"), file=sys.stderr)
    num, repeats = len(plan.rows), request.repeats
    losses = f", then losses of {request.parity_steps} steps" if request.parity_steps else ""
    told = f"{num} rows, {repeats} rounds: {num * repeats} turns in processes of their own{losses}"
    print(told, file=sys.stderr, flush=True)


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def measure_speeds(outcome: Outcome, kept: Kept, announce: Callable[[str], None]) -> None:
    """Rounds of all rows; one that fails is a row with its reason, and those after it do without it.

    Failures, and what closing gaps between kernels can gain, are told on stderr at once. Where the first row fails
    measuring ends, with the rounds before. Raises ConfigError if there are none.
    """
    rows = {row.name: row for row in outcome.plan.rows}

    def turn(row: Row) -> Speed:
        number = len(outcome.speeds.get(row.name, ()))
        try:
            found = speed_of(_job(row, outcome), number, outcome.request, kept)
        except TurnFailed as error:
            if row.step is None:
                raise _FirstRowFailed(str(error)) from error
            outcome.plan.drop(row, first_round=number == 0)
            outcome.failures[row.name] = f"{error}" if number == 0 else f"in round {number + 1}: {error}"
            outcome.speeds.pop(row.name, None)
            _say(f"{row.name} failed: {outcome.failures[row.name]}")
            raise
        outcome.speeds.setdefault(row.name, []).append(found)
        if row.step is None and number == 0 and (said := gaps(outcome)):
            _say(said)
        return found

    repeats = outcome.request.repeats
    try:
        interleave(
            {name: partial(turn, row) for name, row in rows.items()},
            repeats=repeats,
            before_turn=lambda number, name, done: announce(f"round {number + 1} of {repeats}: {name}"),
        )
    except _FirstRowFailed as error:
        _end(outcome, str(error))


def _end(outcome: Outcome, reason: str) -> None:
    """Keep the rounds that all have. Raises ConfigError where there are none."""
    first = outcome.plan.rows[0]
    num = len(outcome.speeds.get(first.name, []))
    if not num:
        train = shlex.join(["python", "train.py", *outcome.plan.overrides_of(first)])
        raise ConfigError(
            f"study={outcome.request.name}: its first row, {first.name}, cannot be measured, and nothing without it: "
            f"{reason}; mend what stops this run: {train}"
        )
    outcome.speeds = {name: speeds[:num] for name, speeds in outcome.speeds.items()}
    outcome.ended = (
        f"Measuring ended in round {num + 1}, as {first.name} failed, with which all are compared: {reason}. "
        f"The complete rounds, {num}, are what the table shows; the same command tries the others again."
    )


def _job(row: Row, outcome: Outcome) -> SpeedJob:
    plan, request = outcome.plan, outcome.request
    beside = tuple(tuple(plan.words(step)) for step in plan.file.steps)
    return SpeedJob(plan.overrides_of(row), request.seconds, outcome.cold, beside)
