"""Differences between two runs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.report.run_files import Record, leaves

HARDWARE = ("cpu", "gpu", "usable CPUs", "memory")
"""Facts of a machine that must be equal in both runs; otherwise a ratio also measures the machines."""


class Row(NamedTuple):
    """A value of this run and of the baseline, and the ratio of this run to the baseline."""

    name: str
    ours: str
    theirs: str
    ratio: str = ""


def careful(ours: Record, theirs: Record) -> list[str]:
    """Reasons why a ratio of the two runs may not show the effect of a change; sentences without their full stop."""
    warnings = []
    if ours.simulated != theirs.simulated:
        kinds = [f"a simulated {run.simulated}" if run.simulated else "a real accelerator" for run in (ours, theirs)]
        warnings.append(f"the accelerators differ: {ours.name} has {kinds[0]}, {theirs.name} has {kinds[1]}")
    mine, other = (dict(run.diagnosis.measurements.machine) if run.diagnosis else {} for run in (ours, theirs))
    return warnings + [
        f"{name} differs: {ours.name} has {mine[name]}, {theirs.name} has {other[name]}"
        for name in HARDWARE
        if name in mine and name in other and mine[name] != other[name]
    ]


def differences(ours: Record, theirs: Record) -> dict[str, list[tuple[str, ...]]]:
    """Rows of the tables by topic; no rows where one of the runs has no data."""
    tables: dict[str, list[Row]] = {"metrics": metric_rows(ours, theirs)}
    plain = {"config": _changed(dict(leaves(ours.config)), dict(leaves(theirs.config)))}
    if ours.diagnosis is not None and theirs.diagnosis is not None:
        mine, other = ours.diagnosis, theirs.diagnosis
        tables["ceilings"] = ceiling_rows(mine, other)
        machines = ({**run.measurements.machine, **run.measurements.versions} for run in (mine, other))
        plain |= {"verdict": verdict_rows(mine, other), "machine": _changed(*machines)}
    with_ratios = {name: [tuple(row) for row in rows] for name, rows in tables.items()}
    return with_ratios | {name: [row[:3] for row in rows] for name, rows in plain.items()}


def verdict_rows(ours: Diagnosis, theirs: Diagnosis) -> list[Row]:
    mine, other = _verdict(ours), _verdict(theirs)
    return [Row(name, mine[name], other[name]) for name in mine]


def _verdict(diagnosis: Diagnosis) -> dict[str, str]:
    return {
        "cause": diagnosis.meaning,
        "verdict": diagnosis.sentence,
        "confidence": diagnosis.confidence.level,
        "next limit": diagnosis.measurements.stages.get(diagnosis.next_stage or "", diagnosis.next_stage or "none"),
        "date": diagnosis.measurements.date,
    }


def ceiling_rows(ours: Diagnosis, theirs: Diagnosis) -> list[Row]:
    """Rows for the stages that both diagnoses measured."""
    mine, other = ours.measurements.ceilings, theirs.measurements.ceilings
    stages = ours.measurements.stages.items()
    return [_ceiling_row(label, mine[name], other[name]) for name, label in stages if name in mine and name in other]


def _ceiling_row(label: str, ours: Ceiling, theirs: Ceiling) -> Row:
    """The ratio has the widest interval that both intervals allow, since the windows of two runs are not paired."""
    rates = ours.images_per_second, theirs.images_per_second
    mine, other = ours.estimate, theirs.estimate
    most = f"{mine.high / other.low:.2f}" if other.low else "any"  # a window may have no image
    interval = f"{mine.low / other.high:.2f} to {most}"
    return Row(label, f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"{rates[0] / rates[1]:.2f} ({interval})")


def metric_rows(ours: Record, theirs: Record) -> list[Row]:
    mine, other = _numbers(ours), _numbers(theirs)
    rows: list[Row] = []
    for name in dict.fromkeys([*mine, *other]):
        a, b = mine.get(name), other.get(name)
        mine_text, other_text = ("" if value is None else show(float(value)) for value in (a, b))
        rows.append(Row(name, mine_text, other_text, f"{a / b:.2f}" if a is not None and b else ""))
    return rows


def _numbers(record: Record) -> dict[str, float]:
    diagnosis = record.diagnosis
    if diagnosis is None:
        return dict(record.summary)
    verdict = {}
    if diagnosis.is_judged:
        verdict = {"measured images/s": diagnosis.measured, "expected images/s": diagnosis.expected}
        verdict["efficiency"] = diagnosis.efficiency
    phases = {f"{name}, seconds per step": seconds for name, seconds in diagnosis.measurements.phases.items()}
    return verdict | phases | dict(record.summary)


def _changed(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[Row]:
    """Rows for the names whose values differ."""
    pairs = {name: (mine.get(name, "(absent)"), other.get(name, "(absent)")) for name in [*mine, *other]}
    return [Row(name, show(a), show(b)) for name, (a, b) in pairs.items() if a != b]


def show(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
