"""Workers, batches ahead and requests in flight: until the loader gives more than the device takes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from imagenet_opt import machine
from imagenet_opt.cli.doctor_stages import Patient, Span, drain
from imagenet_opt.cli.tune_turns import Changes
from imagenet_opt.data.loader import train_loader
from imagenet_opt.measure.climb import Climb, climb
from imagenet_opt.measure.deadline import Deadline, OutOfTime
from imagenet_opt.measure.diagnosis import Ceiling

ENOUGH = 1.2
"""Times what the device takes: storage has its moods, and the training process wants its share of the CPUs."""
_KEYS = ("num_workers", "prefetch_factor", "reads_in_flight")


@dataclass(frozen=True)
class Setting:
    """As data.* has it: numbers, or auto."""

    num_workers: Any
    prefetch_factor: Any
    reads_in_flight: Any

    def __str__(self) -> str:
        return f"{self.num_workers} workers, {self.prefetch_factor} ahead, {self.reads_in_flight} reads"

    def beside(self, other: "Setting") -> Changes:
        """The overrides that make this out of the other."""
        return tuple(f"data.{key}={getattr(self, key)}" for key in _KEYS if getattr(self, key) != getattr(other, key))


@dataclass
class Loader:
    """ceilings: what each turn saw. target: images per second that are enough, None where that is not known."""

    climb: Climb[Setting]
    changes: Changes
    target: float | None
    ceilings: dict[Setting, list[Ceiling]] = field(default_factory=dict)


def tune_loader(
    patient: Patient, deadline: Deadline, announce: Callable[[str], None], *, device_rate: float | None, seconds: float
) -> Loader:
    """The loader alone, on files that are not in memory where there are such. device_rate: what the device takes."""
    how = patient.how
    start = Setting(how.num_workers, how.prefetch_factor, how.reads_in_flight)
    ceilings: dict[Setting, list[Ceiling]] = {}

    def turn(setting: Setting) -> float:
        if ceilings and deadline.left() < 2 * seconds:
            raise OutOfTime
        announce(f"the loader: {setting}")
        ceiling = _rate(patient, setting, seconds)
        ceilings.setdefault(setting, []).append(ceiling)
        return ceiling.images_per_second

    target = None if device_rate is None else ENOUGH * device_rate
    found = climb(start, (_workers, _prefetch, _reads), turn, enough=target)
    return Loader(found, found.best.beside(start), target, ceilings)


def _rate(patient: Patient, setting: Setting, seconds: float) -> Ceiling:
    how = replace(patient.how, samples_per_epoch=None, **{key: getattr(setting, key) for key in _KEYS})
    index = patient.samples.once(patient.samples.cold_rows())
    return drain(train_loader(index, how, patient.seat), Span(seconds))


def _workers(best: Setting) -> list[Setting]:
    """One a usable CPU is the likely best; fewer where the storage or the CPUs' threads are the limit."""
    cpus = machine.usable_cpus()
    now = cpus if best.num_workers == "auto" else min(best.num_workers, cpus)
    others = dict.fromkeys((cpus, cpus - cpus // 4, cpus // 2))
    return [replace(best, num_workers=num) for num in others if num > 0 and num != now]


def _prefetch(best: Setting) -> list[Setting]:
    now = 4 if best.prefetch_factor == "auto" else best.prefetch_factor
    return [replace(best, prefetch_factor=2 * now), replace(best, prefetch_factor=max(1, now // 2))]


def _reads(best: Setting) -> list[Setting]:
    """What follows the latency is the likely best, then ever more."""
    return [replace(best, reads_in_flight=num) for num in ("auto", 64, 256) if num != best.reads_in_flight]
