"""The few numbers that the report begins with."""

from typing import NamedTuple

from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.evidence import evidence_of
from imagenet_opt.doctor.verdict import is_judged, rate_in_trouble
from imagenet_opt.report.run_files import IMAGENET_IMAGES, Record


class Tile(NamedTuple):
    """A number, what it is, and what stands below it."""

    label: str
    value: str
    notes: tuple[str, ...] = ()


def tiles(record: Record, price_per_hour: float | None = None) -> list[Tile]:
    """The rates of a verdict; of a run without one, what its summary says."""
    found = record.diagnosis
    if found is None or not is_judged(found):
        return _of_summary(record)
    made = [
        Tile(
            label,
            f"{rate / found.measurements.batch_size:.2f} it/s",
            (f"{rate:,.0f} images/s", epoch(rate, found, price_per_hour)),
        )
        for label, rate in rates(found).items()
    ]
    return [*made, Tile("efficiency", f"{found.efficiency:.0%}", ("measured / expected",))]


def rates(found: Diagnosis) -> dict[str, float]:
    """Images per second now, as expected, and with what comes next: the cause fixed, or a faster GPU."""
    known = {"now": found.measured, "expected": found.expected}
    if found.next_gain is not None:
        known["faster GPU" if found.cause == "healthy" else "if fixed"] = (
            rate_in_trouble(evidence_of(found)) * found.next_gain
        )
    return known


def epoch(rate: float, found: Diagnosis, price_per_hour: float | None) -> str:
    """How long one takes, and what it costs."""
    images = found.measurements.facts.num_samples or IMAGENET_IMAGES
    hours = images / rate / 3600
    price = "" if price_per_hour is None else f", ${price_per_hour * hours:,.2f}"
    return f"{_duration(hours)}{price} an epoch of {images:,.0f}"


def _duration(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"


_SUMMARY = {
    "throughput/it_per_second": ("it/s", "{:.2f}"),
    "throughput/images_per_second": ("images/s", "{:,.0f}"),
    "throughput/data_wait_fraction": ("data wait", "{:.1%}"),
    "gpu/utilization_percent": ("GPU busy", "{:.0f} %"),
    "rehearsal/accelerator_utilization": ("accelerator busy", "{:.0%}"),
    "val/acc1": ("top-1 accuracy on validation", "{:.1%}"),
}


def _of_summary(record: Record) -> list[Tile]:
    known = ((label, shape, record.summary.get(key)) for key, (label, shape) in _SUMMARY.items())
    return [Tile(label, shape.format(value)) for label, shape, value in known if value is not None]
