"""What is not the same in two runs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from imagenet_opt.doctor.confidence import confidence
from imagenet_opt.doctor.diagnosis import STAGES, Diagnosis, Finding
from imagenet_opt.doctor.verdict import is_judged, meaning
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.report.run_files import Record, leaves

HARDWARE = ("cpu", "gpu", "usable CPUs", "memory")
"""What a machine has that both need for a ratio to be that of what was changed."""
_ABSENT = "(absent)"


class Row(NamedTuple):
    """A value of this run and of the baseline, and this one as a multiple of the other."""

    name: str
    ours: str
    theirs: str
    ratio: str = ""


def careful(ours: Record, theirs: Record) -> list[str]:
    """Why a ratio of the two may not be that of what was changed: sentences without their full stop."""
    found = []
    if ours.simulated != theirs.simulated:
        kinds = [f"{one.name} has {_accelerator(one)}" for one in (ours, theirs)]
        found.append(f"not the same accelerator: {', '.join(kinds)}")
    mine, other = (dict(one.diagnosis.measurements.machine) if one.diagnosis else {} for one in (ours, theirs))
    return found + [
        f"not the same {name}: {ours.name} has {mine[name]}, {theirs.name} has {other[name]}"
        for name in HARDWARE
        if name in mine and name in other and mine[name] != other[name]
    ]


def _accelerator(record: Record) -> str:
    return f"a simulated {record.simulated}" if record.simulated else "a real one"


def differences(ours: Record, theirs: Record) -> dict[str, list[tuple[str, ...]]]:
    """Rows of tables, by what they are about; empty where one has nothing to compare."""
    tables: dict[str, list[Row]] = {"metrics": metric_rows(ours, theirs)}
    plain = {"config": _changed(dict(leaves(ours.config)), dict(leaves(theirs.config)))}
    if ours.diagnosis is not None and theirs.diagnosis is not None:
        mine, other = ours.diagnosis, theirs.diagnosis
        tables |= {"ceilings": ceiling_rows(mine, other), "step": step_rows(mine, other)}
        plain |= {"verdict": verdict_rows(mine, other), "rules": rule_rows(mine, other)}
        plain["machine"] = _changed(_place(mine), _place(other))
    whole = {name: [tuple(row) for row in rows] for name, rows in tables.items()}
    return whole | {name: [row[:3] for row in rows] for name, rows in plain.items()}


def _place(found: Diagnosis) -> dict[str, str]:
    """The machine and the versions of its software."""
    return {**found.measurements.machine, **found.measurements.versions}


def verdict_rows(ours: Diagnosis, theirs: Diagnosis) -> list[Row]:
    mine, other = _verdict(ours), _verdict(theirs)
    return [Row(name, mine[name], other[name]) for name in mine]


def _verdict(found: Diagnosis) -> dict[str, str]:
    return {
        "cause": meaning(found),
        "verdict": found.sentence,
        "confidence": confidence(found).level,
        "next limit": STAGES.get(found.next_stage or "", found.next_stage or "none"),
        "looked at": found.measurements.date,
    }


def rule_rows(ours: Diagnosis, theirs: Diagnosis) -> list[Row]:
    """Of the rules that fired in one of the two at least."""
    mine, other = ({finding.rule: finding for finding in found.findings} for found in (ours, theirs))
    fired = [name for name in dict.fromkeys([*mine, *other]) if _fired(mine.get(name)) or _fired(other.get(name))]
    return [Row(name, _outcome(mine.get(name)), _outcome(other.get(name))) for name in fired]


def _fired(finding: Finding | None) -> bool:
    return finding is not None and bool(finding.fired)


def _outcome(finding: Finding | None) -> str:
    if finding is None:
        return _ABSENT
    if finding.fired is None:
        return "could not be looked at"
    gain = "" if finding.gain is None else f"; fixed, {finding.gain:.2f} times as fast"
    return f"fired{gain}" if finding.fired else "did not fire"


def step_rows(ours: Diagnosis, theirs: Diagnosis) -> list[Row]:
    """The parts of a step in milliseconds."""
    mine, other = ({step.name: step.seconds * 1e3 for step in found.waterfall} for found in (ours, theirs))
    return _numbers_rows(mine, other, "{:,.1f}")


def ceiling_rows(ours: Diagnosis, theirs: Diagnosis) -> list[Row]:
    """Of the stages that both have."""
    mine, other = ours.measurements.ceilings, theirs.measurements.ceilings
    return [
        Row(label, _rate(mine[name]), _rate(other[name]), _ratio(mine[name], other[name]))
        for name, label in STAGES.items()
        if name in mine and name in other
    ]


def _rate(ceiling: Ceiling) -> str:
    return f"{ceiling.images_per_second:,.0f}"


def _ratio(ours: Ceiling, theirs: Ceiling) -> str:
    """With the widest that both intervals allow: the windows of two runs do not belong to each other."""
    mine, other = ours.estimate, theirs.estimate
    ratio = ours.images_per_second / theirs.images_per_second
    return f"{ratio:.2f} ({mine.low / other.high:.2f} to {mine.high / other.low:.2f})"


def metric_rows(ours: Record, theirs: Record) -> list[Row]:
    return _numbers_rows(_numbers(ours), _numbers(theirs), "{:,.4g}")


def _numbers(record: Record) -> dict[str, float]:
    found = record.diagnosis
    if found is None:
        return dict(record.summary)
    verdict = {"measured images/s": found.measured, "expected images/s": found.expected, "efficiency": found.efficiency}
    known = verdict if is_judged(found) else {}
    phases = {f"{name}, seconds of a step": seconds for name, seconds in found.measurements.phases.items()}
    facts = {name: value for name, value in found.measurements.facts.known().items() if not isinstance(value, str)}
    return known | phases | facts | dict(record.summary)


def _numbers_rows(mine: Mapping[str, float], other: Mapping[str, float], shape: str) -> list[Row]:
    rows = []
    for name in dict.fromkeys([*mine, *other]):
        a, b = mine.get(name), other.get(name)
        ours, theirs = ("" if value is None else shape.format(value) for value in (a, b))
        rows.append(Row(name, ours, theirs, f"{a / b:.2f}" if a is not None and b else ""))
    return rows


def _changed(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[Row]:
    """Of the names whose values are not the same."""
    pairs = {name: (mine.get(name, _ABSENT), other.get(name, _ABSENT)) for name in [*mine, *other]}
    return [Row(name, show(a), show(b)) for name, (a, b) in pairs.items() if a != b]


def show(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
