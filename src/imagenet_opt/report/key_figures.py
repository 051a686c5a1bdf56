"""The few numbers at the top of the report."""

from typing import NamedTuple

from imagenet_opt.display.progress import duration
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.report.run_files import Record


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


_SUMMARY = {
    "throughput/it_per_second": ("it/s", "{:.2f}"),
    "throughput/images_per_second": ("images/s", "{:,.0f}"),
    "throughput/data_wait_fraction": ("data wait", "{:.1%}"),
    "gpu/utilization_percent": ("GPU busy", "{:.0f} %"),
    "rehearsal/accelerator_utilization": ("accelerator busy", "{:.0%}"),
    "val/acc1": ("top-1 accuracy on validation", "{:.1%}"),
}
