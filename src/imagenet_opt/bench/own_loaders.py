"""Our own rows of the benchmark, and the row of nvImageCodec alone, the limit of any loader that decodes with it."""

from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch

from imagenet_opt.bench.job import REGION, WORKER, Job
from imagenet_opt.data.dataset import train_crops
from imagenet_opt.data.decode.decoder import Box, region_codec
from imagenet_opt.data.loader import RankInfo, store_of, train_loader
from imagenet_opt.data.order import SampleIds
from imagenet_opt.errors import BadSample

_IN_MEMORY = 1024
"""Files that each process of the ceiling keeps: about 110 MB of ImageNet, more than a CPU's caches hold."""


class Ours:
    """The loader that training uses, without the processing of batches on the device."""

    def __init__(self, job: Job) -> None:
        loading = replace(
            job.loading,
            resize_on="worker" if job.row == WORKER else "device",
            region_decode=job.loading.region_decode or job.row == REGION,
            num_workers=job.num_workers,
            prefetch_factor=job.prefetch_factor,
            samples_per_epoch=None,
        )
        self.prefetcher = train_loader(job.long_index(), loading, RankInfo(device=torch.device(job.device)))
        self.prefetcher.finish = lambda batch: batch  # type: ignore[assignment,return-value]

    def __iter__(self) -> Iterator[Sized]:
        return iter(self.prefetcher)

    def pop_metrics(self) -> dict[str, float]:
        """Means per batch, as the workers measured them."""
        return self.prefetcher.pop_metrics()


def ceiling(job: Job) -> Iterable[Sized]:
    """Measure our region decode from memory: a process per worker decodes crops of files in memory.

    The timed processes read nothing and send only the number of decoded images.
    """
    context = torch.multiprocessing.get_context("fork")
    decoded = context.SimpleQueue()
    for worker in range(max(1, job.num_workers)):
        context.Process(target=_decode_for_ever, args=(job, worker, decoded), daemon=True).start()
    while True:
        batch = decoded.get()
        if isinstance(batch, str):
            raise RuntimeError(batch)
        yield range(batch)


def _decode_for_ever(job: Job, worker: int, decoded: Any) -> None:
    try:
        codec = region_codec()
        if not (crops := list(crops_in_memory(job, worker))):
            raise ValueError("nvImageCodec can decode a region of none of the files")
        endless_crops, batch_size = cycle(crops), job.loading.batch_size
        while True:
            for encoded, box in islice(endless_crops, batch_size):
                codec.decode(codec.parse(encoded), box)
            decoded.put(batch_size)
    except Exception as error:
        decoded.put(f"{type(error).__name__}: {error}")


def crops_in_memory(job: Job, worker: int) -> Iterator[tuple[bytes, Box]]:
    """Random files with the crops of training; without files that nvImageCodec refuses."""
    loading, codec = job.loading, region_codec()
    plan = partial(train_crops, seed=loading.seed, scale=loading.crop_scale)
    store = store_of(job.index, replace(loading, added_latency_ms=0.0, max_mb_per_second=None))
    for i in np.random.default_rng([loading.seed, worker]).permutation(len(job.index))[:_IN_MEMORY]:
        with suppress(OSError, BadSample):
            (encoded,) = store.read_many(np.array([i]))
            if (stream := codec.parse(encoded)) is None:
                continue
            sizes = (np.array([side]) for side in (stream.height, stream.width))
            crops, _ = plan(SampleIds(np.array([i]), np.zeros(1, np.int64), 1), *sizes)
            top, left, height, width = (int(side[0]) for side in crops)
            box = (top, left, height, width)
            if codec.decode(stream, box) is not None:
                yield encoded, box
