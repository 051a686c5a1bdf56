"""Runs a study of steps: measures the gain of each override and whether it changes the loss."""

import sys
from dataclasses import asdict, dataclass

from imagenet_opt.config.build import precision_of
from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import check_writable_experiments, unwritable
from imagenet_opt.display.progress import announced, duration
from imagenet_opt.display.table import Table
from imagenet_opt.errors import ConfigError, printable
from imagenet_opt.measure.storage.page_cache import MOSTLY
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.request import Request, checked_options
from imagenet_opt.study.result_cache import ResultCache
from imagenet_opt.study.steps.apply import keep_winners
from imagenet_opt.study.steps.compare import compare, undecided_rows
from imagenet_opt.study.steps.losses import Losses, measure_losses
from imagenet_opt.study.steps.plan import Plan, StepsFile, Study, check_rows
from imagenet_opt.study.steps.speeds import job_of, measure_speeds
from imagenet_opt.study.steps.table import tables


@dataclass(frozen=True)
class Storage:
    """Identifies a stored answer: whether the files of this folder were in memory when the study began."""

    folder: str


def run(request: Request) -> list[Table]:
    """Measure the speed of all rows, then their losses, and return the tables. Raises ImagenetOptError."""
    cache = ResultCache(request.folder)
    study = begin(request, cache)
    _tell_coming(study)
    cache.set_subject({"job": asdict(job_of(study.rows[0], study)), "config": study.rows[0].config})
    cache.report_resumed()
    with cache.report_if_stopped():
        with announced(_num_missing(study, cache), budget_seconds=request.budget_seconds or None) as report:
            speeds = measure_speeds(study, cache, cache.only_new(report), undecided_rows)
        with announced(None) as report:
            report = cache.only_new(report)
            losses = measure_losses(study, speeds, cache, report) if request.parity_steps else Losses()
            results = compare(speeds, losses)
            shown = tables(study, results, speeds.ended)
            return [*shown, keep_winners(study, results, cache, report)] if request.apply else shown


def _num_missing(study: Study, cache: ResultCache) -> int | None:
    """Number of turns without a stored result; None if the budget decides how many there are."""
    if study.request.repeats is None:
        return None
    rounds = range(study.request.repeats)
    return sum(not cache.has(job_of(row, study), number, config=row.config) for row in study.rows for number in rounds)


def begin(request: Request, cache: ResultCache) -> Study:
    """Check the study and prepare its rows; nothing is trained yet. Raises ConfigError."""
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
    plan = Plan(file, request.overrides, batch_size=testbed.loading.batch_size, has_gpu=has_gpu, mixed=mixed)
    rows = plan.rows()
    check_rows(rows)  # mistakes first
    _tell_replaced(plan, request)
    storage = Storage(str(testbed.samples.index.folder))
    cold = cache.take(storage, 0, lambda: (testbed.samples.residency().share or 0.0) < MOSTLY)
    return Study(plan, request, rows, cold=bool(cold))


def _check_representable(file: StepsFile) -> None:
    """Check that an experiment file can contain all overrides of the study. Raises ConfigError."""
    for word in (*file.lasting, *(word for step in file.steps for word in step.overrides)):
        if reason := unwritable(word):
            raise ConfigError(f"--apply: {word} {reason}; leave --apply out, or set keys in the study's file")


def _tell_replaced(plan: Plan, request: Request) -> None:
    if pairs := plan.replaced():
        words = ", ".join(f"{given} (it starts with {start})" for given, start in pairs)
        print(printable(f"study={request.name} replaces what the command line says: {words}"), file=sys.stderr)


def _tell_coming(study: Study) -> None:
    """Say on stderr what will be measured and what is left out."""
    for reason in study.plan.left_out():
        print(printable(f"left out, as {reason}"), file=sys.stderr)
    num, request = len(study.rows), study.request
    losses = f", then losses of {request.parity_steps} steps" if request.parity_steps else ""
    if request.repeats is None:
        words = f"{num} rows in turns for {duration(request.budget_seconds)}; rows that are decided stop{losses}"
    else:
        turns = f"{num * request.repeats} turns in processes of their own"
        words = f"{num} rows, {request.repeats} rounds: {turns}{losses}"
    print(words, file=sys.stderr, flush=True)
