"""The rows of a study of steps, for those who want to know more than its table says."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from imagenet_opt.cli.study_plan import Plan, Row
from imagenet_opt.cli.study_steps import Outcome
from imagenet_opt.measure.blocks import Ratio
from imagenet_opt.measure.parity import Parity
from imagenet_opt.measure.sheet import Cell, Column, Sheet
from imagenet_opt.measure.statistics import verdict

Ratios = Mapping[str, Mapping[str, Ratio]]
"""By measure and row."""
_ADDED = "Each row trains with what the row that it is compared with has, and with its own."
_LEFT_OUT = "The first row trains with all of them, each other one without its own."


def numbers(outcome: Outcome, ratios: Ratios) -> dict[str, Any]:
    """Everything that was measured, as JSON has it."""
    plan = outcome.plan
    left_out = [
        {"name": step.name, "overrides": plan.words(step), "failure": f"left out: {plan.absent[step.name]}"}
        for step in plan.file.steps
        if step.name in plan.absent
    ]
    rows = [_numbers(outcome, row, ratios) for row in plan.rows]
    return {"order": plan.file.order, "cold": outcome.cold, "rows": [*rows, *left_out]}


def _numbers(outcome: Outcome, row: Row, ratios: Ratios) -> dict[str, Any]:
    return {
        "name": row.name,
        "overrides": overrides(outcome.plan, row),
        "compared_with": compared_with(outcome.plan, row),
        "speeds": outcome.speeds.get(row.name, []),
        "ratios": ratio_numbers(ratios, row.name),
        "losses": outcome.losses.get(row.name, {}),
        "parity": _parity(outcome.parities.get(row.name)),
        "failure": outcome.failures.get(row.name),
    }


def ratio_numbers(ratios: Ratios, name: str) -> dict[str, Any]:
    """By measure. low, high: of an interval that does not exist after too few rounds are not finite."""
    return {
        measure: {"ratio": one.ratio, "low": one.low, "high": one.high, "verdict": verdict(one)}
        for measure, found in ratios.items()
        if (one := found.get(name)) is not None
    }


def _parity(found: Parity | str | None) -> dict[str, Any] | None:
    if isinstance(found, Parity):
        return {**asdict(found), "agrees": found.agrees}
    return None if found is None else {"not_compared": found}


def overrides(plan: Plan, row: Row) -> list[str]:
    """The row's own; of the first, those of the start."""
    return plan.words(row.step) if row.step else list(plan.file.below)


def compared_with(plan: Plan, row: Row) -> str | None:
    return plan.base_of(row).name if row.step else None


def what_rows_set(plan: Plan) -> Sheet:
    """Which overrides make each row."""
    columns = (Column("step"), Column("its overrides"), Column("compared with"))
    rows: list[tuple[Cell, ...]] = [
        (row.name, " ".join(overrides(plan, row)) or "none", compared_with(plan, row)) for row in plan.rows
    ]
    rows += [(step.name, " ".join(plan.words(step)), None) for step in plan.file.steps if step.name in plan.absent]
    said = _LEFT_OUT if plan.file.order == "leave_one_out" else _ADDED
    return Sheet("What each row sets", columns, tuple(rows), (f"All have what the command line says. {said}",))
