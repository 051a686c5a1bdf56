"""Sentences below the tables of a study of steps."""

from collections.abc import Sequence
from statistics import median

from imagenet_opt.compare.gain import Gain
from imagenet_opt.display.progress import as_budget
from imagenet_opt.display.table import RATIOS
from imagenet_opt.measure.stats.intervals import CONFIDENCE
from imagenet_opt.measure.stats.paired_ratios import UNDECIDED
from imagenet_opt.object_storage import is_url
from imagenet_opt.study.compare import MEASURES, RowResult, Worths
from imagenet_opt.study.plan import Study
from imagenet_opt.study.request import MOST_ROUNDS, Request
from imagenet_opt.study.speeds import gaps

_BUSY = 0.9
"""A device that is busy for this share of a full run does not wait for its pipeline."""
_HELD_UP = 0.8
"""The pipeline slows a full run down if the full run reaches less than this share of the network's own speed."""


def warnings(study: Study, results: Sequence[RowResult], measure: str) -> tuple[str, ...]:
    """Sentences below the ratios of a measure. Below the last ones stands what decides all that is undecided."""
    lines = list[str]()
    if measure == "full":
        all_worths = [worths for result in results for worths in (result.worth, result.together)]
        undecided = advice([worth for worths in all_worths for worth in worths.values()], study.request)
        lines += [*_queue_left(results), *undecided]
    return tuple(lines)


def notes(study: Study, results: Sequence[RowResult], together: Worths, ended: str | None) -> tuple[str, ...]:
    """Sentences below the details."""
    plan, first = study.plan, results[0]
    num = sum(bool(worths) for result in results for worths in (result.worth, result.together))
    base = {
        "cumulative": "the row that the next table names",
        "alone": "the start",
        "leave_one_out": "all steps but this one",
    }
    lines = [
        f"Each ratio compares with {base[plan.file.order]}, in {len(first.turns)} rounds. The intervals of all "
        f"{len(MEASURES) * num} comparisons hold at once with a probability of {CONFIDENCE:.0%}.",
        RATIOS,
        f"Full runs read files from {_place(study)}.",
    ]
    lines += [f"{result.row.name} failed: {result.failure}." for result in results if result.failure is not None]
    lines += [
        f"{result.row.name} was measured on top of {', '.join(result.row.also)}, which failed later: the ratio "
        "includes the failed steps."
        for result in results
        if result.row.also and result.failure is None
    ]
    lines += [ended] if ended else []
    if not first.turns:
        return tuple(lines)
    lines += [sentence] if (sentence := gaps(first.row.name, first.turns, has_gpu=plan.has_gpu)) else []
    if together:
        gains = (f"{name} {together[measure]}" for measure, name in MEASURES.items())
        lines.append(f"All together: {', '.join(gains)} against the start.")
    return (*lines, *_held_up(results, has_gpu=plan.has_gpu))


def advice(worths: Sequence[Gain], request: Request) -> list[str]:
    """How to decide all that is undecided, as a sentence; none if nothing is."""
    undecided = [worth for worth in worths if worth.verdict == UNDECIDED and worth.ratio.coverage]
    if not undecided:
        return []
    if request.repeats is not None:
        rounds = max(worth.ratio.num_rounds + worth.more_rounds for worth in undecided)
        number = f", probably to {rounds:.0f}" if request.repeats < rounds <= MOST_ROUNDS else ""
        return [f"To decide all that is {UNDECIDED}, raise --repeats{number}."]
    budget = as_budget(max(worth.more_seconds for worth in undecided))
    return [f"To decide all that is {UNDECIDED}, run the command again with --budget {budget}; it resumes."]


def _queue_left(results: Sequence[RowResult]) -> list[str]:
    names = "; ".join(result.row.name for result in results if not all(turn.is_steady for turn in result.turns))
    sentence = (
        f"Raise --seconds: in {names} batches that were ready before the timing were left at its end, so the pipeline "
        "rate may be too high."
    )
    return [sentence] if names else []


def _place(study: Study) -> str:
    if study.cold:
        return "storage"
    return "the local cache" if is_url(study.rows[0].config["data"].get("root")) else "memory"


def _held_up(results: Sequence[RowResult], *, has_gpu: bool) -> list[str]:
    fastest = max((result for result in results if result.turns), key=lambda result: median(result.rates("compute")))
    alone, full = (median(fastest.rates(measure)) for measure in MEASURES)
    if full >= _HELD_UP * alone or median(turn.busy for turn in fastest.turns) >= _BUSY:
        return []
    rates = f"With {fastest.row.name} the network alone does {alone:,.0f} images/s, the full pipeline {full:,.0f}"
    if not has_gpu:
        return [f"{rates}: loader and network share the cores, so a speed-up of one also speeds up the other."]
    return [
        f"{rates}: behind that bottleneck, a faster network gains nothing. `imagenet-opt doctor` names the bottleneck."
    ]
