"""Images per second, out of a loader, a copy or a fit that was watched."""

import time
from dataclasses import dataclass

import numpy as np
import torch

from imagenet_opt.cli.doctor_fit import Watched, images_ahead
from imagenet_opt.data.batch import Batch, RaggedBatch
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.diagnosis import Ceiling
from imagenet_opt.measure.rate import has_few_pauses, rate_windows


@dataclass(frozen=True)
class Span:
    """Seconds of one experiment, and when it ends at the latest."""

    seconds: float

    @property
    def limit(self) -> float:
        return 4 * self.seconds


def drain(loader: DevicePrefetcher, span: Span) -> Ceiling:
    """What a loader gives to one who does nothing else; it is closed then."""
    workers = max(1, loader.loader.num_workers)
    loader.finish = lambda batch: batch  # type: ignore[assignment,return-value]
    stamps: list[float] = []
    sizes: list[int] = []
    began = time.perf_counter()
    try:
        for number, batch in enumerate(loader):
            if number < workers:
                loader.drain()
                continue
            stamps.append(now := time.perf_counter())
            sizes.append(len(batch))
            least = max(3 * workers * len(batch), 3 * images_ahead(batch, loader))
            enough = now - stamps[0] >= span.seconds and sum(sizes[1:]) >= least and not has_few_pauses(stamps)
            if (enough or now - began > span.limit) and len(stamps) > 1:
                break
        if len(stamps) < 2:
            raise ConfigError(f"{len(stamps) + workers} batches are too few to measure; lower data.batch_size")
        facts = {name.removeprefix("loader/"): value for name, value in loader.drain().items()}
    finally:
        loader.close()
    facts |= {"num_workers": float(loader.loader.num_workers), "longest_gap_seconds": float(np.diff(stamps).max())}
    return Ceiling(rate_windows(stamps, sizes, multiple=workers), facts, in_bursts=True)


def timed_copy(batch: Batch | RaggedBatch, device: torch.device, span: Span) -> Ceiling:
    """Copies from pinned memory, one after the other."""
    pinned, stamps = batch.pin_memory(), [0.0]
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    while stamps[-1] < span.seconds:
        pinned.to(device, non_blocking=True)
        torch.cuda.synchronize(device)
        stamps.append(time.perf_counter() - began)
    return Ceiling(rate_windows(stamps, [len(batch)] * len(stamps)), {"batch_mb": batch.data.nbytes / 1e6})


def watched_ceiling(seen: Watched, *, multiple: int = 1, in_bursts: bool = False) -> Ceiling:
    facts = {"device_seconds": seen.device_seconds, "num_steps": float(len(seen.step_seconds))}
    facts["steady"] = float(seen.steady)
    return Ceiling(rate_windows(seen.stamps, seen.num_images, multiple=multiple), facts, in_bursts)
