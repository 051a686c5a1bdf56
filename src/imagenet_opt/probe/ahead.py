"""How much a loader prepares in advance, so that a measurement lasts longer than that."""

from typing import Any

from imagenet_opt.data.batch import Batch


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
