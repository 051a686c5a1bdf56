"""Builds the tables and plots of a study of steps."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from imagenet_opt.display.progress import as_budget
from imagenet_opt.display.table import RATIOS, Cell, Column, Plot, Series, Table
from imagenet_opt.measure.stats.block_ratios import UNDECIDED
from imagenet_opt.measure.stats.intervals import CONFIDENCE
from imagenet_opt.measure.stats.sequential import confidence_of_all
from imagenet_opt.object_storage import is_url
from imagenet_opt.study.request import MOST_ROUNDS, Request
from imagenet_opt.study.steps.calm import CLOCKS_LOWERED, MOST_OTHERS_PERCENT
from imagenet_opt.study.steps.compare import MEASURES, RowResult, Worth, Worths
from imagenet_opt.study.steps.losses import Parity
from imagenet_opt.study.steps.plan import Plan, Study
from imagenet_opt.study.steps.speeds import gaps
from imagenet_opt.study.steps.turn import Speed, least_others

_ADDED = "Each row trains with the overrides of the row that it is compared with, and with its own overrides."
_LEFT_OUT = "The first row trains with the overrides of all steps, each other row without its own overrides."
_BUSY = 0.9
"""A device that is busy for this share of a full run does not wait for its pipeline."""
_HELD_UP = 0.8
"""The pipeline slows a full run down if the full run reaches less than this share of the network's own speed."""
_COLUMNS = (Column("step"), Column("images/s"), Column("ratio", "{:.2f} x"), Column("interval"), Column("verdict"))


def tables(
    study: Study, results: Sequence[RowResult], ended: str | None = None, *, num_continued: int = 0
) -> list[Table]:
    """The tables of a study: ratios of each measure, details, and the overrides of each row.

    ended: the reason if measuring ended early. num_continued: see `Speeds`.
    """
    together = next((result.together for result in results if result.together), Worths())
    every = [worth for result in results for worths in (result.worth, result.together) for worth in worths.values()]
    warnings = {measure: _disturbed(results, measure) for measure in MEASURES}
    warnings["full"] += [*_queue_left(results), *advice(every, study.request)]
    data = numbers(study, results) | {"all_together": worth_numbers(together)}
    ratios = [
        Table(
            f"{study.request.title}: {name}",
            _COLUMNS,
            tuple(_ratio_row(result, measure) for result in results),
            tuple(warnings[measure]),
            plots=(ratio_plot(results, measure),),
            data=data if measure == "compute" else {},
            finding=_finding(results, measure),
        )
        for measure, name in MEASURES.items()
    ]
    sets = what_rows_set(study.plan, results)
    below = notes(study, results, together, ended, num_continued=num_continued)
    return [*ratios, _details(study, results, below), sets]


def _finding(results: Sequence[RowResult], measure: str) -> str:
    """Which steps make the measure faster, the most useful first."""
    ratios = [(result.worth[measure].ratio.ratio, result) for result in results if result.turns and result.worth]
    faster = sorted(((r, each.row.name) for r, each in ratios if each.worth[measure].verdict == "faster"), reverse=True)
    if not faster:
        return f"No step is certain to make the {MEASURES[measure]} faster."
    shown = ", ".join(f"{name} ({ratio:.2f} x)" for ratio, name in faster[:3])
    more = f" and {len(faster) - 3} more" if len(faster) > 3 else ""
    return f"The {MEASURES[measure]} is faster with {shown}{more}."


def _ratio_row(result: RowResult, measure: str) -> tuple[Cell, ...]:
    if measure in result.worth:
        return result.row.name, *result.worth[measure].cells
    speed = f"{median(result.rates(measure)):,.0f}" if result.turns else None
    return result.row.name, "failed" if result.failure is not None else speed, None, None, None


def _details(study: Study, results: Sequence[RowResult], below: tuple[str, ...]) -> Table:
    request = study.request
    columns = [Column("step"), Column("pipeline / alone", "{:.0%}"), Column("device busy", "{:.0%}")]
    columns += [Column("memory GiB", "{:.1f}"), Column("compile s", "{:.0f}")]
    columns += [Column("M images per $", "{:.1f}")] if request.price_per_hour else []
    columns += [Column("loss")] if request.parity_steps else []
    rows = tuple((result.row.name, *_cells(result, request)) for result in results if result.turns)
    plots = (rate_plot(results),)
    left_out = tuple(f"Left out, as {reason}." for reason in study.plan.left_out())
    return Table(f"{request.title}: details", tuple(columns), rows, below, plots, left_out=left_out)


def _cells(result: RowResult, request: Request) -> list[Cell]:
    alone, full = (median(result.rates(measure)) for measure in MEASURES)
    compile_seconds = [seconds for speed in result.turns if (seconds := speed.get("compile_seconds")) is not None]
    cells: list[Cell] = [
        full / alone if alone else None,
        median(map(busy, _full(result))),
        max(float(speed["memory_gib"] or 0.0) for speed in _full(result)),
        max(compile_seconds, default=None),
    ]
    cells += [full * 3600 / request.price_per_hour / 1e6] if request.price_per_hour else []
    cells += [None if result.parity is None else str(result.parity)] if request.parity_steps else []
    return cells


def _full(result: RowResult) -> list[Speed]:
    """The rounds with a full run."""
    return [speed for speed in result.turns if speed.get("full") is not None]


def busy(speed: Speed) -> float:
    """Share of a full run in which kernels ran; if they were not observed, in which the device had work."""
    if (kernel_seconds := speed.get("kernel_seconds")) and speed["batch_size"]:
        return min(1.0, kernel_seconds * (speed["full"] or 0.0) / speed["batch_size"])
    return speed["busy"] or 0.0


def notes(
    study: Study, results: Sequence[RowResult], together: Worths, ended: str | None, *, num_continued: int
) -> tuple[str, ...]:
    """Sentences below the details."""
    plan, first = study.plan, results[0]
    num = sum(bool(worths) for result in results for worths in (result.worth, result.together))
    up_to = "up to " if study.request.repeats is None else ""
    base = {
        "cumulative": "the row that the next table names",
        "alone": "the start",
        "leave_one_out": "all steps but this one",
    }
    lines = [
        f"Each ratio compares with {base[plan.file.order]}, in {up_to}{len(first.turns)} rounds. The intervals of all "
        f"{len(MEASURES) * num} comparisons hold at once with a probability of {confidence_of_all(num_continued):.0%}.",
        *_continued(num_continued),
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
    return (*lines, *_given_up(results), *_discarded(results), *_held_up(results, has_gpu=plan.has_gpu))


def _given_up(results: Sequence[RowResult]) -> list[str]:
    """The measure that stopped undecided while the other one went on."""
    num_rounds = {measure: max(len(result.rates(measure)) for result in results) for measure in MEASURES}
    all_worths = [worths for result in results for worths in (result.worth, result.together)]
    undecided = {m for worths in all_worths for m, worth in worths.items() if worth.verdict == UNDECIDED}
    return [
        f"The {name} has only {num_rounds[measure]} rounds: the time left would probably not have decided its "
        "undecided steps, so the other measure got it."
        for measure, name in MEASURES.items()
        if num_rounds[measure] < max(num_rounds.values()) and measure in undecided
    ]


def _continued(num_continued: int) -> list[str]:
    if not num_continued:
        return []
    times = "once" if num_continued == 1 else f"{num_continued} times"
    return [
        f"The study was continued {times}, and each continuation adds a chance of a wrong verdict. A new study in "
        f"another --folder, with a larger --budget, has {CONFIDENCE:.0%}."
    ]


def advice(worths: Sequence[Worth], request: Request) -> list[str]:
    """How to decide all that is undecided, as a sentence; none if nothing is."""
    undecided = [worth for worth in worths if worth.verdict == UNDECIDED and worth.ratio.coverage]
    if not undecided:
        return []
    if request.repeats is not None:
        rounds = max(worth.num_rounds + worth.more_rounds for worth in undecided)
        number = f", probably to {rounds:.0f}" if request.repeats < rounds <= MOST_ROUNDS else ""
        return [f"To decide all that is {UNDECIDED}, raise --repeats{number}."]
    budget = as_budget(max(worth.more_seconds for worth in undecided))
    return [f"To decide all that is {UNDECIDED}, run the command again with --budget {budget}; it resumes."]


def _disturbed(results: Sequence[RowResult], measure: str) -> list[str]:
    key = {"compute": "alone_others_percent", "full": "others_percent"}[measure]
    least = least_others([result.turns for result in results], key) or 0.0
    if least >= CLOCKS_LOWERED:
        return ["Something lowered the GPU's clocks in most measurements: see `imagenet-opt doctor`."]
    if least > MOST_OTHERS_PERCENT:
        return [
            f"Other programs used {least:.0f} % of the CPUs or more in most measurements, which widens the intervals."
        ]
    return []


def _discarded(results: Sequence[RowResult]) -> list[str]:
    discarded = [
        f"{num} of the {name}"
        for key, name in (("num_discarded", MEASURES["full"]), ("num_discarded_alone", MEASURES["compute"]))
        if (num := round(sum(speed.get(key) or 0.0 for result in results for speed in result.turns)))
    ]
    names = ", ".join(discarded)
    return [f"Cycles left out because of other programs or lowered clocks: {names}."] if discarded else []


def _queue_left(results: Sequence[RowResult]) -> list[str]:
    names = "; ".join(result.row.name for result in results if any(speed.get("steady") == 0 for speed in result.turns))
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
    if full >= _HELD_UP * alone or median(map(busy, _full(fastest))) >= _BUSY:
        return []
    rates = f"With {fastest.row.name} the network alone does {alone:,.0f} images/s, the full pipeline {full:,.0f}"
    if not has_gpu:
        return [f"{rates}: loader and network share the cores, so a speed-up of one also speeds up the other."]
    return [
        f"{rates}: behind that bottleneck, a faster network gains nothing. `imagenet-opt doctor` names the bottleneck."
    ]


def ratio_plot(results: Sequence[RowResult], measure: str) -> Plot:
    """The ratio of each step with its interval."""
    known = {result.row.name: result.worth[measure].ratio for result in results if result.turns and result.worth}
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
    """All measured numbers as JSON values."""
    plan = study.plan
    left_out = [
        {"name": step.name, "overrides": plan.words(step), "failure": f"left out: {plan.absent[step.name]}"}
        for step in plan.file.steps
        if step.name in plan.absent
    ]
    return {"order": plan.file.order, "cold": study.cold, "rows": [*map(_numbers, results), *left_out]}


def _numbers(result: RowResult) -> dict[str, Any]:
    return {
        "name": result.row.name,
        "overrides": list(result.row.own),
        "compared_with": result.row.base,
        "speeds": list(result.turns),
        "ratios": worth_numbers(result.worth),
        "losses": result.losses,
        "parity": _parity_numbers(result.parity),
        "failure": result.failure,
    }


def worth_numbers(worths: Worths) -> dict[str, Any]:
    """The gains by measure, as JSON values. With too few rounds, low and high are not finite."""
    return {
        measure: {name: getattr(worth.ratio, name) for name in ("ratio", "low", "high")} | {"verdict": worth.verdict}
        for measure, worth in worths.items()
    }


def _parity_numbers(parity: Parity | str | None) -> dict[str, Any] | None:
    if isinstance(parity, Parity):
        return {**asdict(parity), "agrees": parity.agrees}
    return None if parity is None else {"not_compared": parity}


def what_rows_set(plan: Plan, results: Sequence[RowResult]) -> Table:
    """Table of the overrides of each row."""
    columns = (Column("step"), Column("its overrides"), Column("compared with"))
    rows: list[tuple[Cell, ...]] = [
        (result.row.name, " ".join(result.row.own) or "none", result.row.base) for result in results
    ]
    rows += [(step.name, " ".join(plan.words(step)), None) for step in plan.file.steps if step.name in plan.absent]
    meaning = _LEFT_OUT if plan.file.order == "leave_one_out" else _ADDED
    return Table(
        "What each row sets", columns, tuple(rows), (f"All rows have the overrides of the command line. {meaning}",)
    )
