"""Finds the fastest settings of any DataLoader: workers, batches ahead, workers that stay, pinned memory."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader

from imagenet_opt import machine
from imagenet_opt.diagnosis.measurements import check_seconds
from imagenet_opt.diagnosis.source import NoBatch, Source, num_bytes
from imagenet_opt.errors import ConfigError, DataError, named_first_line
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.measure.stats.verdict import LEAST_GAIN

_MEMORY_SHARE = 0.8
"""Largest share of the free memory and of the free /dev/shm that batches and workers may use."""
AHEAD = 2
"""Batches that torch lets each worker make ahead."""
_FURTHER_AHEAD = 8
_TURNS = 3
_IN_CURVE = 0.7
"""Share of the time for the numbers of workers; the rest is for the batches ahead."""


@dataclass
class Sweep:
    """A DataLoader alone with other numbers of workers, within the memory of the machine.

    seconds: number of workers -> seconds per batch of the loader alone. failed: experiment -> reason. batch_bytes,
    worker_bytes: the largest so far. lines, decoding: as in `Measurements`, of the first number with workers."""

    loader: DataLoader[Any]
    seconds: dict[int, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    batch_bytes: int = 0
    worker_bytes: int = 0
    lines: dict[str, float] = field(default_factory=dict)
    decoding: float = 0.0

    def run(self, counts: Iterable[int], deadline: Deadline, share: float) -> None:
        """Measure these numbers of workers in this order, as far as memory and `share` of the time allow."""
        missing = [count for count in counts if count not in self.seconds]
        for number, count in enumerate(missing):
            name, left = f"num_workers={count}", deadline.left(share)
            if not left and len(self.seconds) > 1:
                self.failed[f"num_workers={', '.join(map(str, missing[number:]))}"] = "there is no time"
                return
            if count > (most := self.most_workers()):
                self.failed[name] = f"memory and /dev/shm allow {most} workers"
                continue
            try:
                self.seconds[count] = self.measure(left / (len(missing) - number), num_workers=count)
            except Exception as error:
                self.failed[name] = "no batch" if isinstance(error, NoBatch) else named_first_line(error)

    def measure(self, seconds: float, **settings: Any) -> float:
        """Seconds per batch with these settings; workers start within the time."""
        source = Source(self.loader, settings)
        try:
            self.batch_bytes = max(self.batch_bytes, num_bytes(source.next()))
            taken = source.drain(seconds / 3, limit=seconds)
            self.worker_bytes = max(self.worker_bytes, source.worker_bytes())
            if not self.lines:  # without workers nobody looks at the lines
                self.lines, self.decoding = source.lines, source.decoding
            return taken
        finally:
            source.close()

    def most_workers(self, prefetch_factor: int = AHEAD) -> int:
        """Workers that _MEMORY_SHARE of the free memory and of the free /dev/shm allow."""
        batches = max(1, (prefetch_factor + 1) * self.batch_bytes)
        shared, memory = machine.free_shared_memory(), machine.available_memory()
        return int(_MEMORY_SHARE * min(shared / batches, memory / (batches + self.worker_bytes)))


def enough(seconds: dict[int, float]) -> int:
    """The fewest workers with which a batch takes less than LEAST_GAIN times the shortest time. seconds: by number."""
    return min(count for count, taken in seconds.items() if taken <= LEAST_GAIN * min(seconds.values()))


class Settings(dict[str, Any]):
    """Arguments for a DataLoader. curve: number of workers -> batches per second of the loader alone. notes: what was
    not tried, and why. str() draws the curve."""

    def __init__(self, curve: dict[int, float], notes: list[str], **settings: Any) -> None:
        super().__init__(settings)
        self.curve, self.notes = curve, tuple(notes)

    def __str__(self) -> str:
        best = max(self.curve.values())
        lines = [
            f"{num:3} workers {rate:9.1f} batches/s {'#' * round(30 * rate / best)}" for num, rate in self.curve.items()
        ]
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.items())
        return "\n".join([*lines, *self.notes, f"DataLoader(..., {arguments})"])


def tune(loader: DataLoader[Any], seconds: float = 60.0) -> Settings:
    """Measure a DataLoader alone with other numbers of workers, and return the settings that are fastest here:
    `DataLoader(dataset, batch_size=..., **tune(loader))`.

    At most 80 % of the free memory and of the free /dev/shm are used, and about `seconds`, if 16 batches or so take no
    longer. Of settings that differ by less than 5 % the one with the fewest workers is returned. Raises ConfigError for
    another loader or too few seconds, DataError if it gives no batch or fails without workers.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"tune takes a torch.utils.data.DataLoader, not a {type(loader).__name__}")
    check_seconds(seconds)
    deadline, sweep = Deadline(0.9 * seconds), Sweep(loader)
    counts = [count for count in (0, 1, 2, 4, 8, 16, 32, 64) if count <= max(4, 2 * machine.usable_cpus())]
    sweep.run(counts[:1], deadline, _IN_CURVE)
    if 0 not in sweep.seconds:
        raise DataError(f"the DataLoader fails without workers: {sweep.failed['num_workers=0']}")
    sweep.run(counts, deadline, _IN_CURVE)
    best, pin = enough(sweep.seconds), torch.cuda.is_available()
    curve = {count: 1 / taken for count, taken in sweep.seconds.items()}
    notes = [f"not tried: {name}, {reason}" for name, reason in sweep.failed.items()]
    if not best:
        return Settings(curve, notes, num_workers=0, pin_memory=pin)
    near, far = list[float](), list[float]()
    share = deadline.left() / (2 * _TURNS) if sweep.most_workers(_FURTHER_AHEAD) >= best else 0.0
    for _ in range(_TURNS if share else 0):
        for factor, results in ((AHEAD, near), (_FURTHER_AHEAD, far)):
            results.append(sweep.measure(share, num_workers=best, prefetch_factor=factor))
    is_faster = bool(far) and median(near) > LEAST_GAIN * median(far)
    ahead = _FURTHER_AHEAD if is_faster else AHEAD
    return Settings(curve, notes, num_workers=best, prefetch_factor=ahead, persistent_workers=True, pin_memory=pin)
