"""How much a loader prepares in advance, so that a measurement lasts longer than that."""

from typing import Any

from imagenet_opt.data.batch import Batch
from imagenet_opt.run.hooks import MeasuredLoader


def images_ahead(batch: Batch, loader: Any) -> int:
    """Images in preparation when a batch is delivered: in prefetched batches and in files read ahead. From slow storage
    these images arrive in bursts, so a measurement must last longer."""
    if not isinstance(loader, MeasuredLoader):
        return 0
    ahead = loader.prefetch_factor * len(batch) / loader.num_parts + 2 * batch.stats.reads_in_flight
    return int(max(1, loader.num_workers) * ahead)


def batches_per_round(num_workers: int, num_parts: int) -> int:
    """Batches that arrive together, at least 1: all workers finish at about the same time, and a large batch consists
    of `num_parts` parts from different workers."""
    return max(1, -(-num_workers // num_parts))
