"""Builds the tables and plots of a study of steps."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from imagenet_opt.display.table import Cell, Column, Plot, Series, Table
from imagenet_opt.study.compare import MEASURES, RowResult, Worths
from imagenet_opt.study.losses import Parity
from imagenet_opt.study.notes import notes, warnings
from imagenet_opt.study.plan import Plan, Study
from imagenet_opt.study.request import Request

_ADDED = "Each row trains with the overrides of the row that it is compared with, and with its own overrides."
_LEFT_OUT = "The first row trains with the overrides of all steps, each other row without its own overrides."
_COLUMNS = (Column("step"), Column("images/s"), Column("ratio", "{:.2f} x"), Column("interval"), Column("verdict"))


def tables(study: Study, results: Sequence[RowResult], ended: str | None = None) -> list[Table]:
    """The tables of a study: ratios of each measure, details, and the overrides of each row.

    ended: the reason if measuring ended early.
    """
    together = next((result.together for result in results if result.together), Worths())
    data = numbers(study, results) | {"all_together": worth_numbers(together)}
    ratios = [
        Table(
            f"{study.request.title}: {name}",
            _COLUMNS,
            tuple(_ratio_row(result, measure) for result in results),
            warnings(study, results, measure),
            plots=(ratio_plot(results, measure),),
            data=data if measure == "compute" else {},
            finding=_finding(results, measure),
        )
        for measure, name in MEASURES.items()
    ]
    sets = what_rows_set(study.plan, results)
    below = notes(study, results, together, ended)
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
    cells: list[Cell] = [
        full / alone,
        median(turn.busy for turn in result.turns),
        max(turn.memory_gib for turn in result.turns),
        max((turn.compile_seconds for turn in result.turns if turn.compile_seconds is not None), default=None),
    ]
    cells += [full * 3600 / request.price_per_hour / 1e6] if request.price_per_hour else []
    cells += [None if result.parity is None else str(result.parity)] if request.parity_steps else []
    return cells


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
        "turns": list(map(asdict, result.turns)),
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
