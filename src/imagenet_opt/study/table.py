"""Builds the tables, plots and notes of a study of steps."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from imagenet_opt.display.progress import as_budget
from imagenet_opt.display.table import RATIOS, Cell, Column, Plot, Series, Table
from imagenet_opt.measure.stats.intervals import CONFIDENCE
from imagenet_opt.measure.stats.verdict import UNDECIDED
from imagenet_opt.study.compare import MEASURES, RowResult, Worths
from imagenet_opt.study.losses import Parity
from imagenet_opt.study.plan import Plan, Study
from imagenet_opt.study.request import MOST_ROUNDS, Request

_COLUMNS = (Column("step"), Column("images/s"), Column("ratio", "{:.2f} x"), Column("interval"), Column("verdict"))
_BUSY = 0.9
"""A device that is busy for this share of a full run does not wait for its pipeline."""
_HELD_UP = 0.8
"""The pipeline slows a full run down if the full run reaches less than this share of the network's own speed."""


def tables(study: Study, results: Sequence[RowResult]) -> list[Table]:
    """The tables of a study: ratios of each measure, details, and the overrides of each row."""
    ratios = [
        Table(
            f"{study.request.title}: {name}",
            _COLUMNS,
            tuple(_ratio_row(result, measure) for result in results),
            tuple(advice(results, study.request)) if measure == "full" else (),
            plots=(ratio_plot(results, measure),),
            data=numbers(study, results) if measure == "compute" else {},
            finding=_finding(results, measure),
        )
        for measure, name in MEASURES.items()
    ]
    return [*ratios, _details(study, results), _what_rows_set(study.plan, results)]


def _finding(results: Sequence[RowResult], measure: str) -> str:
    """Which steps make the measure faster, the most useful first."""
    gains = [(result.worth[measure], result.row.name) for result in results if result.worth]
    faster = sorted(((gain.ratio.ratio, name) for gain, name in gains if gain.verdict == "faster"), reverse=True)
    if not faster:
        return f"No step is certain to make the {MEASURES[measure]} faster."
    shown = ", ".join(f"{name} ({ratio:.2f} x)" for ratio, name in faster[:3])
    more = f" and {len(faster) - 3} more" if len(faster) > 3 else ""
    return f"The {MEASURES[measure]} is faster with {shown}{more}."


def _ratio_row(result: RowResult, measure: str) -> tuple[Cell, ...]:
    if result.worth:
        return result.row.name, *result.worth[measure].cells
    speed = f"{median(result.rates(measure)):,.0f}" if result.turns else "failed"
    return result.row.name, speed, None, None, None


def advice(results: Sequence[RowResult], request: Request) -> list[str]:
    """How to decide all that is undecided, as a sentence; none if nothing is."""
    worths = [worth for result in results for each in (result.worth, result.together) for worth in each.values()]
    undecided = [worth for worth in worths if worth.verdict == UNDECIDED and worth.ratio.coverage]
    if not undecided:
        return []
    if request.repeats is not None:
        rounds = max(worth.ratio.num_rounds + worth.more_rounds for worth in undecided)
        number = f", probably to {rounds:.0f}" if request.repeats < rounds <= MOST_ROUNDS else ""
        return [f"To decide all that is {UNDECIDED}, raise --repeats{number}."]
    budget = as_budget(max(worth.more_seconds for worth in undecided))
    return [f"To decide all that is {UNDECIDED}, run the command again with --budget {budget}; it resumes."]


def _details(study: Study, results: Sequence[RowResult]) -> Table:
    request = study.request
    columns = [Column("step"), Column("pipeline / alone", "{:.0%}"), Column("device busy", "{:.0%}")]
    columns += [Column("memory GiB", "{:.1f}"), Column("compile s", "{:.0f}")]
    columns += [Column("loss")] if request.parity_steps else []
    rows = tuple((result.row.name, *_cells(result, request)) for result in results if result.turns)
    notes, left_out = _notes(study, results), tuple(study.plan.left_out())
    return Table(f"{request.title}: details", tuple(columns), rows, notes, (rate_plot(results),), left_out=left_out)


def _cells(result: RowResult, request: Request) -> list[Cell]:
    alone, full = (median(result.rates(measure)) for measure in MEASURES)
    cells: list[Cell] = [
        full / alone,
        median(turn.busy for turn in result.turns),
        max(turn.memory_gib for turn in result.turns),
        max((turn.compile_seconds for turn in result.turns if turn.compile_seconds is not None), default=None),
    ]
    return [*cells, None if result.parity is None else str(result.parity)] if request.parity_steps else cells


def _notes(study: Study, results: Sequence[RowResult]) -> tuple[str, ...]:
    """Sentences below the details."""
    num = sum(bool(worths) for result in results for worths in (result.worth, result.together))
    place = "storage" if study.cold else "memory, or from the local cache of a URL"
    lines = [
        f"The last table names the row that each row is compared with. The intervals of all {len(MEASURES) * num} "
        f"comparisons, of {len(results[0].turns)} rounds, hold at once with a probability of {CONFIDENCE:.0%}.",
        RATIOS,
        f"Full runs read files from {place}.",
        *(f"{result.row.name} failed {result.failure}." for result in results if result.failure is not None),
        *(f"All together against the start: {result.together}." for result in results if result.together),
    ]
    return (*lines, *_held_up(results, has_gpu=study.plan.has_gpu))


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


def ratio_plot(results: Sequence[RowResult], measure: str) -> Plot:
    """The ratio of each step with its interval."""
    known = {result.row.name: result.worth[measure].ratio for result in results if result.worth}
    middle, low, high = (tuple(getattr(ratio, name) for ratio in known.values()) for name in ("ratio", "low", "high"))
    title = "Speed with the step / without it. Green: faster, red: slower, grey: no difference, hollow: undecided"
    return Plot(title, "ratio", "", "ratios", (Series(MEASURES[measure], tuple(known), middle, low, high),))


def rate_plot(results: Sequence[RowResult]) -> Plot:
    """Images per second of both measures: median, minimum and maximum of the rounds."""
    measured = [result for result in results if result.turns]
    names = tuple(result.row.name for result in measured)
    series = []
    for measure, name in MEASURES.items():
        rates = [result.rates(measure) for result in measured]
        series.append(Series(name, names, tuple(map(median, rates)), tuple(map(min, rates)), tuple(map(max, rates))))
    return Plot("Images per second, median and range of the rounds", "", "images/s", "bars", tuple(series))


def numbers(study: Study, results: Sequence[RowResult]) -> dict[str, Any]:
    """All measured numbers as JSON values. With too few rounds, low and high are not finite."""

    def gains(worths: Worths) -> dict[str, Any]:
        return {name: worth.ratio._asdict() | {"verdict": worth.verdict} for name, worth in worths.items()}

    rows = [
        {
            "name": result.row.name,
            "overrides": list(result.row.own),
            "compared_with": result.row.base,
            "turns": list(map(asdict, result.turns)),
            "ratios": gains(result.worth),
            "all_together": gains(result.together),
            "losses": result.losses,
            "parity": asdict(result.parity) if isinstance(result.parity, Parity) else result.parity,
            "failure": result.failure,
        }
        for result in results
    ]
    return {"order": study.plan.file.order, "cold": study.cold, "left_out": study.plan.absent, "rows": rows}


def _what_rows_set(plan: Plan, results: Sequence[RowResult]) -> Table:
    columns = (Column("step"), Column("its overrides"), Column("compared with"))
    rows: list[tuple[Cell, ...]] = [
        (result.row.name, " ".join(result.row.own) or "none", result.row.base) for result in results
    ]
    meaning = "Each row trains with the overrides of the row that it is compared with, and with its own overrides."
    if plan.file.order == "leave_one_out":
        meaning = "The first row trains with the overrides of all steps, each other row without its own overrides."
    notes = (f"All rows have the overrides of the command line. {meaning}",)
    return Table("What each row sets", columns, tuple(rows), notes)
