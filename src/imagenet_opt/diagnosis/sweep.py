"""A DataLoader alone with other settings: batches per second by number of workers, within the memory of the machine."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader

from imagenet_opt import machine
from imagenet_opt.diagnosis.source import NoBatch, Source, num_bytes
from imagenet_opt.errors import named_first_line
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.measure.stats.verdict import LEAST_GAIN

MEMORY_SHARE = 0.8
"""Largest share of the free memory and of the free /dev/shm that batches and workers may use."""
AHEAD = 2
"""Batches that torch lets each worker make ahead."""


@dataclass
class Sweep:
    """seconds: number of workers -> seconds per batch of the loader alone. failed: experiment -> reason. batch_bytes,
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
        """Workers that MEMORY_SHARE of the free memory and of the free /dev/shm allow."""
        batches = max(1, (prefetch_factor + 1) * self.batch_bytes)
        shared, memory = machine.free_shared_memory(), machine.available_memory()
        return int(MEMORY_SHARE * min(shared / batches, memory / (batches + self.worker_bytes)))


def enough(seconds: dict[int, float]) -> int:
    """The fewest workers with which a batch takes less than LEAST_GAIN times the shortest time. seconds: by number."""
    return min(count for count, taken in seconds.items() if taken <= LEAST_GAIN * min(seconds.values()))
