"""Finds the fastest settings of any DataLoader: workers, batches ahead, workers that stay, pinned memory."""

from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader

from imagenet_opt import machine
from imagenet_opt.diagnosis.source import NoBatch, Source, leaves_of, most_workers
from imagenet_opt.errors import ConfigError, DataError, named_first_line
from imagenet_opt.measure.stats.rounds import Deadline

_NEARLY = 0.95  # the fewest workers that reach this share of the highest rate are enough
_AHEAD, _FURTHER_AHEAD = 2, 8
_TURNS = 3
_IN_CURVE = 0.7
"""Share of the time for the numbers of workers; the rest is for the batches ahead."""


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
    another loader, DataError if it gives no batch or fails without workers.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"tune takes a torch.utils.data.DataLoader, not a {type(loader).__name__}")
    deadline, curve, notes = Deadline(0.9 * seconds), {}, list[str]()
    counts = [count for count in (0, 1, 2, 4, 8, 16, 32, 64) if count <= max(4, 2 * machine.usable_cpus())]
    batch_bytes = worker_bytes = 0
    for number, count in enumerate(counts):
        most, left = most_workers(batch_bytes, worker_bytes, _AHEAD), deadline.left(_IN_CURVE)
        if count > most or not left:
            why = f"memory and /dev/shm allow {most}" if count > most else "there is no time"
            notes.append(f"not tried: {count} workers or more, {why}")
            break
        try:
            curve[count], *sizes = _measured(loader, left / (len(counts) - number), num_workers=count)
        except NoBatch:
            raise DataError("the DataLoader gave no batch; is the data set empty?") from None
        except Exception as error:
            if not count:
                raise DataError(f"the DataLoader raised {named_first_line(error)}") from error
            notes.append(f"not tried: {count} workers, {named_first_line(error)}")
            continue
        batch_bytes, worker_bytes = (max(pair) for pair in zip(sizes, (batch_bytes, worker_bytes), strict=True))
    best = min(count for count, rate in curve.items() if rate >= _NEARLY * max(curve.values()))
    pin = torch.cuda.is_available()
    if not best:
        return Settings(curve, notes, num_workers=0, pin_memory=pin)
    rates: dict[int, list[float]] = {_AHEAD: [], _FURTHER_AHEAD: []}
    if most_workers(batch_bytes, worker_bytes, _FURTHER_AHEAD) >= best:
        share = deadline.left() / (2 * _TURNS)
        for _ in range(_TURNS if share else 0):
            for factor, results in rates.items():
                results.append(_measured(loader, share, num_workers=best, prefetch_factor=factor)[0])
    near, far = (median(results or [1.0]) for results in rates.values())
    ahead = _FURTHER_AHEAD if far * _NEARLY > near else _AHEAD
    return Settings(curve, notes, num_workers=best, prefetch_factor=ahead, persistent_workers=True, pin_memory=pin)


def _measured(loader: DataLoader[Any], seconds: float, **settings: Any) -> tuple[float, int, int]:
    """Batches per second, bytes of a batch, and memory of a worker; workers start within the time."""
    source = Source(loader, settings)
    try:
        batch_bytes = sum(getattr(leaf, "nbytes", 0) for leaf in leaves_of(source.next()))
        return 1 / source.drain(seconds / 3, limit=seconds), batch_bytes, source.worker_bytes()
    finally:
        source.close()
