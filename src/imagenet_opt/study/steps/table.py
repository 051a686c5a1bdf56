"""The table of a study of steps, made of what was measured so far, and what each of its rows is."""

from collections.abc import Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

from imagenet_opt.display.table import FAR, Cell, Column, Plot, Series, Sheet
from imagenet_opt.measure.stats.block_ratios import Ratio, block_ratios, verdict
from imagenet_opt.measure.stats.intervals import CONFIDENCE
from imagenet_opt.measure.telemetry.torch_profile import PERMISSION, LaunchGaps
from imagenet_opt.study.steps.outcome import Outcome
from imagenet_opt.study.steps.parity import Parity
from imagenet_opt.study.steps.plan import Plan, Row

WHOLE = "all together"
MEASURES = {"compute": "network alone", "full": "full pipeline"}
Ratios = Mapping[str, Mapping[str, Ratio]]
"""By measure and row."""
_ADDED = "Each row trains with what the row that it is compared with has, and with its own."
_LEFT_OUT = "The first row trains with all of them, each other one without its own."
_MIDDLES = (
    "Images/s are medians of the rounds, ratios those of geometric means over them: where rounds differ much, one does "
    "not follow from the other."
)
_BUSY = 0.9
"""Share of a full run from which on the device is no idle one that waits for its pipeline."""
_HELD_UP = 0.8
"""A full run that reaches less of what the network alone does is held up by its pipeline."""


def sheets(outcome: Outcome) -> list[Sheet]:
    """A row each, measured or not, and what each sets."""
    ratios = {measure: ratios_of(outcome, measure) for measure in MEASURES}
    price = outcome.request.price_per_hour
    columns = [
        Column("step"),
        Column("network alone, images/s", "{:,.0f}"),
        Column("worth alone"),
        Column("full pipeline, images/s", "{:,.0f}"),
        Column("worth in the pipeline"),
        Column("of alone", "{:.0%}"),
        Column("device busy", "{:.0%}"),
        Column("memory GiB", "{:.1f}"),
        Column("compile s", "{:.0f}"),
    ]
    columns += [Column("M images per $", "{:.1f}")] if price else []
    columns += [Column("loss")] if outcome.request.parity_steps else []
    rows = [_cells(outcome, row, ratios) for row in outcome.plan.rows]
    rows += [(name, "left out", *[None] * (len(columns) - 2)) for name in outcome.plan.absent]
    data = numbers(outcome, ratios) | {"all_together": ratio_numbers(ratios, WHOLE)}
    said = tuple(notes(outcome, ratios))
    found = Sheet(outcome.request.title, tuple(columns), tuple(rows), said, plots(outcome), data)
    return [found, what_rows_set(outcome.plan)]


def ratios_of(outcome: Outcome, measure: str) -> dict[str, Ratio]:
    """By row, what its step is worth; of a ladder also the last row over the first. Rounds that are not over do not
    count."""
    measured = [row for row in outcome.plan.rows if row.name in outcome.speeds]
    num_rounds = _num_rounds(outcome)
    later = [row for row in measured if row.step is not None]
    if not num_rounds or not later:
        return {}
    values = {row.name: rates(outcome, row, measure)[:num_rounds] for row in measured}
    pairs = {row.name: outcome.plan.pair(row) for row in later}
    ground = [row.name for row in later if row.step and not row.step.instead_of]
    if outcome.plan.file.order == "cumulative" and ground:
        pairs[WHOLE] = (ground[-1], measured[0].name)
    found = block_ratios(values, list(pairs.values()), num_comparisons=len(MEASURES) * len(pairs))
    return dict(zip(pairs, found, strict=True))


def _num_rounds(outcome: Outcome) -> int:
    """That are over for all rows that did not fail."""
    return min((len(speeds) for speeds in outcome.speeds.values()), default=0)


def rates(outcome: Outcome, row: Row, measure: str) -> list[float]:
    return [float(speed[measure] or 0.0) for speed in outcome.speeds.get(row.name, [])]


def _cells(outcome: Outcome, row: Row, ratios: Ratios) -> tuple[Cell, ...]:
    request = outcome.request
    num_more = bool(request.price_per_hour) + bool(request.parity_steps)
    if row.name in outcome.failures:
        return (row.name, "failed", *[None] * (7 + num_more))
    if row.name not in outcome.speeds:
        return (row.name, *[None] * (8 + num_more))
    cells: list[Cell] = [row.name]
    for measure in MEASURES:
        cells += [median(rates(outcome, row, measure)), said(ratios[measure].get(row.name))]
    alone, full = (median(rates(outcome, row, measure)) for measure in MEASURES)
    cells += [full / alone if alone else None]
    speeds = outcome.speeds[row.name]
    cells += [median(float(speed["busy"] or 0.0) for speed in speeds)]
    cells += [max(float(speed["memory_gib"] or 0.0) for speed in speeds)]
    compiled = [seconds for speed in speeds if (seconds := speed["compile_seconds"]) is not None]
    cells += [max(compiled, default=None)]
    if request.price_per_hour:
        cells += [median(rates(outcome, row, "full")) * 3600 / request.price_per_hour / 1e6]
    if request.parity_steps:
        found = outcome.parities.get(row.name)
        cells += [None if found is None else str(found)]
    return tuple(cells)


def said(ratio: Ratio | None) -> str | None:
    """The ratio with its interval and what that allows to say."""
    if ratio is None:
        return None
    if not ratio.coverage:
        return f"{ratio.ratio:.2f} x, too few rounds"
    high = f"{ratio.high:.2f}" if ratio.high < FAR else "far more"
    return f"{ratio.ratio:.2f} x ({ratio.low:.2f} to {high}) {verdict(ratio)}"


def notes(outcome: Outcome, ratios: Ratios) -> list[str]:
    """What the numbers mean, in words."""
    plan, found = outcome.plan, []
    num = len(ratios["compute"])
    named = "the row that the next table names"
    against = {"cumulative": named, "alone": "the start", "leave_one_out": "all without it"}
    found.append(
        f"Worth: against {against[plan.file.order]}, in {_num_rounds(outcome)} rounds, {len(MEASURES) * num} "
        f"comparisons whose intervals hold together with {CONFIDENCE:.0%}."
    )
    found.append(_MIDDLES)
    found.append(f"Full runs read {'from storage' if outcome.cold else 'files that are in memory'}.")
    found += [f"{name} failed: {reason}." for name, reason in outcome.failures.items()]
    found += outcome.notes()
    found += [f"Left out, as {reason}." for reason in plan.left_out()]
    if not outcome.speeds.get(plan.rows[0].name):
        return found
    found += [known] if (known := gaps(outcome)) else []
    if WHOLE in ratios["compute"]:
        gains = (f"{name} {said(ratios[measure][WHOLE])}" for measure, name in MEASURES.items())
        found.append(f"All together: {', '.join(gains)} against the start.")
    found += _held_up(outcome, max(plan.rows, key=lambda row: median(rates(outcome, row, "compute") or [0.0])))
    return found + _queue_left(outcome)


def gaps(outcome: Outcome) -> str | None:
    """Whether closing gaps between kernels can bring anything at all: the first turn tells before the others.

    None before it, and without a GPU.
    """
    row = outcome.plan.rows[0]
    speeds = outcome.speeds.get(row.name, [])
    found = [(speed["step_seconds"], speed["kernel_seconds"]) for speed in speeds]
    if both := [(step, kernels) for step, kernels in found if step and kernels]:
        steps, kernels = zip(*both, strict=True)
        return f"{row.name}: {LaunchGaps(median(steps), median(kernels)).sentence()}."
    on_gpu = any(kernels is not None for _, kernels in found)
    return f"{row.name}: kernel times could not be seen: {PERMISSION}." if on_gpu else None


def _queue_left(outcome: Outcome) -> list[str]:
    names = [name for name, speeds in outcome.speeds.items() if any(speed.get("steady") == 0 for speed in speeds)]
    if not names:
        return []
    named = "; ".join(names)
    return [f"Raise --seconds: in {named} the queue was not used up, so the pipeline rate may be the queue's."]


def _held_up(outcome: Outcome, fastest: Row) -> list[str]:
    alone, full = (median(rates(outcome, fastest, measure)) for measure in MEASURES)
    speeds = outcome.speeds.get(fastest.name, [])
    if full >= _HELD_UP * alone or median(speed["busy"] or 0.0 for speed in speeds) >= _BUSY:
        return []
    told = f"With {fastest.name} the network alone does {alone:,.0f} images/s, the full pipeline {full:,.0f}"
    if all(speed["kernel_seconds"] is None for speed in speeds):
        return [f"{told}: on a CPU the loader computes on the network's cores, so what one saves the other has."]
    return [f"{told}: behind that bottleneck a faster network is worth nothing. `imagenet-opt doctor` says what it is."]


def plots(outcome: Outcome) -> tuple[Plot, ...]:
    """Images per second of both measures, with what the rounds gave from least to most."""
    rows = [row for row in outcome.plan.rows if outcome.speeds.get(row.name)]
    series = []
    for measure, name in MEASURES.items():
        found = [rates(outcome, row, measure) for row in rows]
        middles = tuple(map(median, found))
        series.append(
            Series(name, tuple(row.name for row in rows), middles, tuple(map(min, found)), tuple(map(max, found)))
        )
    return (Plot("Images per second, median and range of the rounds", "", "images/s", "bars", tuple(series)),)


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
