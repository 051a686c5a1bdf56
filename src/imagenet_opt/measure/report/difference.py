"""What is not the same in two runs."""

from typing import Any, NamedTuple

from imagenet_opt.measure.diagnosis import STAGES, Ceiling
from imagenet_opt.measure.report.record import Record, leaves


class Row(NamedTuple):
    """A value of this run and of the baseline, and this one as a multiple of the other."""

    name: str
    ours: str
    theirs: str
    ratio: str = ""


def ceiling_rows(ours: Record, theirs: Record) -> list[Row]:
    """Of the stages that both have."""
    if ours.diagnosis is None or theirs.diagnosis is None:
        return []
    mine, other = ours.diagnosis.ceilings, theirs.diagnosis.ceilings
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
    mine, other = _numbers(ours), _numbers(theirs)
    rows = []
    for name in dict.fromkeys([*mine, *other]):
        a, b = mine.get(name), other.get(name)
        rows.append(Row(name, show(a), show(b), f"{a / b:.2f}" if a is not None and b else ""))
    return rows


def _numbers(record: Record) -> dict[str, float]:
    found = record.diagnosis
    if found is None:
        return dict(record.summary)
    known = {"measured images/s": found.measured, "expected images/s": found.expected, "efficiency": found.efficiency}
    phases = {f"{name}, seconds of a step": seconds for name, seconds in found.phases.items()}
    return known | phases | dict(found.facts) | dict(record.summary)


def show(value: Any) -> str:
    return "" if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)


def config_rows(ours: Record, theirs: Record) -> list[Row]:
    mine, other = dict(leaves(ours.config)), dict(leaves(theirs.config))
    names = [name for name in dict.fromkeys([*mine, *other]) if mine.get(name) != other.get(name)]
    return [Row(name, mine.get(name, "(absent)"), other.get(name, "(absent)")) for name in names]
