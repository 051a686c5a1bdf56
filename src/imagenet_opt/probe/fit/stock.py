"""Watches the batches that a loader has prefetched, since steps on prefetched batches do not show the loader's rate."""

from collections.abc import Sequence
from typing import Any

from imagenet_opt.data.batch import Batch
from imagenet_opt.measure.stats.rate import LEAST_ROUNDS

_MOST_TAKEN = 0.05
"""Share of the timed batches that may have been prefetched: our choice. The rate is too high by at most this share."""


class Stock:
    """The prefetched batches at the start of a measurement, and the batches that workers made during it.

    multiple: batches that arrive together, see batches_per_round. before: ready batches after each step of the warm-up.
    num_at_begin: batches that were ready at the start.
    """

    def __init__(self, loader: Any, multiple: int, before: Sequence[int] = ()) -> None:
        self.loader, self.multiple = loader, multiple
        self.num_at_begin = num_ready(loader)
        self._numbers = [*before, self.num_at_begin]
        self._decode_seconds: list[float] = []
        self._most_images = 0

    def note(self, batch: Any) -> None:
        """Add a batch of the measurement."""
        self._most_images = max(self._most_images, len(batch))
        self._numbers.append(num_ready(self.loader))
        if (stats := getattr(batch, "stats", None)) is not None:
            self._decode_seconds.append(stats.decode_seconds / len(batch))

    @property
    def stays_level(self) -> bool:
        """Whether the stock was level in enough steps of warm-up and measurement that a loader that is slower than the
        steps by _MOST_TAKEN would have shrunk it."""
        return len(self._numbers) > 1 / _MOST_TAKEN and is_level(self._numbers, self.multiple)

    def lasts(self, num_steps: int) -> bool:
        """Whether the steps used almost no prefetched batch; one batch may be unfinished at the start."""
        return self._num_taken <= max(1, _MOST_TAKEN * num_steps)

    def is_shrinking(self, num_steps: int) -> bool:
        """Whether the steps used more than a few prefetched batches."""
        return self._num_taken > max(self.multiple, _MOST_TAKEN * num_steps)

    def is_enough(self, num_steps: int) -> bool:
        """Whether the steps give a rate. A fast enough loader always has a batch of each worker ready."""
        is_kept_up = min(self.num_at_begin, num_ready(self.loader)) >= self.multiple
        return is_kept_up or num_steps >= LEAST_ROUNDS * self.multiple or not hasattr(self.loader, "num_ready")

    def stats(self) -> tuple[float, float, float] | None:
        """Number of workers, seconds per image of one worker, and images that may have been prepared before the
        measurement; None if batches do not come from workers."""
        workers: Any = getattr(self.loader, "loader", None)
        if workers is None or not self._decode_seconds:
            return None
        num_workers = float(max(1, workers.num_workers))
        images_before = (self.num_at_begin + 2 * num_workers) * self._most_images
        return num_workers, sum(self._decode_seconds) / len(self._decode_seconds), images_before

    @property
    def _num_taken(self) -> int:
        return self.num_at_begin - num_ready(self.loader)


def num_ready(loader: Any) -> int:
    """Number of finished batches that were not requested yet; 0 for a loader without prefetching."""
    return int(getattr(loader, "num_ready", 0))


def is_level(numbers: Sequence[int], multiple: int) -> bool:
    """Whether a stock had a batch of each worker at any time and neither grew nor shrank: then the loader keeps up with
    the steps, without working faster than they do. numbers: of ready batches, after each step. multiple: see
    batches_per_round."""
    varied = max(numbers) - min(numbers)
    return min(numbers) >= multiple and varied <= max(1, multiple // 4) and numbers[-1] >= numbers[0]


def has_many_reads(batch: Batch) -> bool:
    """Whether a worker has several reads in flight, and so files in memory that hide a slow storage from the stock."""
    return batch.stats.reads_in_flight > 1


def images_ahead(batch: Batch, loader: Any) -> int:
    """Images in preparation when a batch is delivered: in prefetched batches and in files read ahead. From slow storage
    these images arrive in bursts, so a measurement must last longer."""
    workers: Any = getattr(loader, "loader", None)
    if workers is None:
        return 0
    num_workers, num_parts = max(1, workers.num_workers), loader.sampler.num_parts
    ahead: float = (workers.prefetch_factor or 0) * len(batch) / num_parts + 2 * batch.stats.reads_in_flight
    return int(num_workers * ahead)


def batches_per_round(num_workers: int, num_parts: int) -> int:
    """Batches that arrive together, at least 1: all workers finish at about the same time, and a large batch consists
    of `num_parts` parts from different workers."""
    return max(1, -(-num_workers // num_parts))
