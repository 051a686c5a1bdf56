"""The few numbers at the top of the report, the differences between two runs, and the report on the terminal."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from imagenet_opt.config.trust import entries
from imagenet_opt.display.printable import printable
from imagenet_opt.display.progress import duration
from imagenet_opt.display.terminal_table import facts_table
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.terminal_view import print_diagnosis
from imagenet_opt.report.run_files import Record

_SUMMARY = {
    "throughput/it_per_second": ("it/s", "{:.2f}"),
    "throughput/images_per_second": ("images/s", "{:,.0f}"),
    "throughput/data_wait_fraction": ("data wait", "{:.1%}"),
    "gpu/utilization_percent": ("GPU busy", "{:.0f} %"),
    "rehearsal/accelerator_utilization": ("accelerator busy", "{:.0%}"),
    "val/acc1": ("top-1 accuracy on validation", "{:.1%}"),
}
"""Number of record.json -> label and format of its tile, for a run without a verdict."""
HARDWARE = ("cpu", "gpu", "usable CPUs", "memory")
"""Facts of a machine that must be equal in both runs; otherwise a ratio also measures the machines."""


class Tile(NamedTuple):
    """A number with its label and the notes below it."""

    label: str
    value: str
    notes: tuple[str, ...] = ()


def tiles(record: Record) -> list[Tile]:
    """The rates that the doctor measured; without a doctor file, those in the summary of the run."""
    diagnosis = record.diagnosis
    if diagnosis is None or not diagnosis.is_judged:
        known = ((label, shape, record.summary.get(key)) for key, (label, shape) in _SUMMARY.items())
        return [Tile(label, shape.format(value)) for label, shape, value in known if value is not None]
    speeds = []
    for label, rate in rates(diagnosis).items():
        notes = f"{rate:,.0f} images/s", epoch(rate, diagnosis)
        speeds.append(Tile(label, f"{rate / diagnosis.measurements.batch_size:.2f} it/s", notes))
    return [*speeds, Tile("efficiency", f"{diagnosis.efficiency:.0%}", ("measured / expected",))]


def rates(diagnosis: Diagnosis) -> dict[str, float]:
    """Images per second now, as expected, and after the next improvement: the cause fixed, or a faster device."""
    known = {"now": diagnosis.measured, "expected": diagnosis.expected}
    if diagnosis.next_rate is not None:
        label = "faster device" if diagnosis.cause == "healthy" else "if fixed"
        known[label] = diagnosis.next_rate
    return known


def epoch(rate: float, diagnosis: Diagnosis) -> str:
    """Text with the duration of an epoch on this machine.

    rate: of one process, which is what the doctor measures; all processes of the machine are taken to reach it.
    """
    setup = diagnosis.measurements.setup
    images, num = setup.num_samples, setup.num_processes
    each = f", if each of {num} processes reaches this" if num > 1 else ""
    return f"{duration(images / (rate * num))} an epoch of {images:,.0f}{each}"


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
    """Rows of the tables by topic: a name, the value of this run and of the baseline, for rates and numbers also the
    ratio of this run to the baseline. No rows where one of the runs has no data."""
    tables = {
        "metrics": metric_rows(ours, theirs),
        "config": _changed(dict(entries(ours.config, lists=False)), dict(entries(theirs.config, lists=False))),
    }
    if ours.diagnosis is not None and theirs.diagnosis is not None:
        mine, other = ours.diagnosis, theirs.diagnosis
        machines = ({**run.measurements.machine, **run.measurements.versions} for run in (mine, other))
        tables |= {
            "ceilings": ceiling_rows(mine, other),
            "verdict": verdict_rows(mine, other),
            "machine": _changed(*machines),
        }
    return tables


def verdict_rows(ours: Diagnosis, theirs: Diagnosis) -> list[tuple[str, ...]]:
    def texts(found: Diagnosis) -> tuple[str, ...]:
        stage = found.measurements.stages.get(found.next_stage or "", found.next_stage or "none")
        return found.meaning, found.sentence, found.confidence.level, stage, found.measurements.date

    names = ("cause", "verdict", "confidence", "next limit", "date")
    return list(zip(names, texts(ours), texts(theirs), strict=True))


def ceiling_rows(ours: Diagnosis, theirs: Diagnosis) -> list[tuple[str, ...]]:
    """Rows for the stages that both diagnoses measured. The ratio has the widest interval that both intervals allow,
    since the windows of two runs are not paired."""
    rows = []
    for name, label in ours.measurements.stages.items():
        mine, other = (run.measurements.ceilings.get(name) for run in (ours, theirs))
        if mine is not None and other is not None:
            rates, ends = (mine.images_per_second, other.images_per_second), (mine.estimate, other.estimate)
            most = f"{ends[0].high / ends[1].low:.2f}" if ends[1].low else "any"  # a window may have no image
            ratio = f"{rates[0] / rates[1]:.2f} ({ends[0].low / ends[1].high:.2f} to {most})"
            rows.append((label, *(f"{rate:,.0f}" for rate in rates), ratio))
    return rows


def metric_rows(ours: Record, theirs: Record) -> list[tuple[str, ...]]:
    mine, other = _numbers(ours), _numbers(theirs)
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys([*mine, *other]):
        a, b = mine.get(name), other.get(name)
        texts = ("" if value is None else show(float(value)) for value in (a, b))
        rows.append((name, *texts, f"{a / b:.2f}" if a is not None and b else ""))
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


def _changed(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows for the names whose values differ."""
    pairs = {name: (mine.get(name, "(absent)"), other.get(name, "(absent)")) for name in [*mine, *other]}
    return [(name, show(a), show(b)) for name, (a, b) in pairs.items() if a != b]


def show(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def print_summary(record: Record, baseline: Record | None, console: Console) -> None:
    """Print the diagnosis with epoch times, or the run's speed if it has no verdict; then the baseline's verdict.

    console: created with `markup=False, highlight=False`, and at least 80 columns wide.
    """
    if record.diagnosis is not None:
        print_diagnosis(record.diagnosis, console)
    else:
        console.print(Text(printable(record.name)))
    if record.diagnosis is not None and record.diagnosis.is_judged:  # whose rates are printed already
        numbers = {label: epoch(rate, record.diagnosis) for label, rate in rates(record.diagnosis).items()}
    else:
        numbers = {tile.label: tile.value for tile in tiles(record)}
    simulated = " (simulated)" if record.simulated else ""
    facts = ((f"{label}{simulated}", Text(words, style="bold")) for label, words in numbers.items())
    console.print(facts_table(facts, style="dim"))
    if baseline is not None:
        for warning in careful(record, baseline):
            console.print(Text(printable(f"careful: {warning}"), style="yellow"))
        if record.diagnosis is not None and baseline.diagnosis is not None:
            rows = verdict_rows(record.diagnosis, baseline.diagnosis)
            pairs = ((name, f"{ours} (baseline: {theirs})") for name, ours, theirs in rows)
            console.print(facts_table(pairs, style="dim"))
    if (absent := record.absent.get("diagnosis")) is not None:
        console.print(Text(printable(f"no verdict: {absent}")))
