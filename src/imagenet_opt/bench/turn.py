"""Runs one turn of the benchmark in a process of its own, so that loaders cannot influence each other."""

import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from imagenet_opt.bench.peers import PEERS
from imagenet_opt.data.decode.nvimagecodec import Box, region_codec
from imagenet_opt.data.index.split import Split, subset
from imagenet_opt.data.loader import RankInfo, store_of, train_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.order import SampleIds
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.data.transforms.crop import train_crops
from imagenet_opt.errors import BadSample, ImagenetOptError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.measure.telemetry.proc_counters import busy_seconds_of_descendants
from imagenet_opt.probe.isolated import call_isolated
from imagenet_opt.run.hooks import MeasuredLoader

WORKER, REGION, CEILING = "worker resize", "region decode", "nvImageCodec alone"
OWN = (WORKER, REGION)
"""Our rows; CEILING is the limit of REGION."""
_IN_MEMORY = 1024
"""Files that each process of the ceiling keeps: about 110 MB of ImageNet, more than a CPU's caches hold."""


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """Settings of a turn, for its process.

    index: the files of all rows. passes: how often they are listed, so that no epoch ends within a turn. num_workers,
    prefetch_factor: the same for all rows; threads make each batch together, so they have prefetch_factor batches ahead
    in all. device: where our batches are delivered. row: its name. packed: folder of a copy in a peer's own format.
    """

    index: Split
    loading: LoaderOptions
    passes: int
    num_workers: int
    prefetch_factor: int
    num_warmup: int
    num_batches: int
    device: str = "cpu"
    row: str = ""
    packed: Path = Path()

    def samples(self) -> list[tuple[str, int]]:
        """(path, label) of every file, for all passes."""
        once = [(self.index.path(i), label) for i, label in enumerate(self.index.labels.tolist())]
        return once * self.passes

    def long_index(self) -> Split:
        """All passes as one index."""
        return subset(self.index, np.tile(np.arange(len(self.index)), self.passes))


@dataclass(frozen=True)
class BenchTurn:
    """Result of a turn. cpu_seconds: CPU time of all threads and processes of the loader. stages: the loader's own
    times, means per batch."""

    num_images: int
    seconds: float
    cpu_seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def images_per_second(self) -> float:
        return self.num_images / self.seconds

    @property
    def cpu_ms_per_image(self) -> float:
        return 1000 * self.cpu_seconds / self.num_images


def run_turn(job: BenchJob) -> BenchTurn:
    """Measure one row in a process of its own. Raises TurnFailed."""
    return BenchTurn(**_isolated("measured", job))


def write_packed(job: BenchJob) -> None:
    """Write the files in the peer's own format to `job.packed`. Raises TurnFailed."""
    _isolated("packed", job)


def _isolated(function: str, job: BenchJob) -> Any:
    try:
        return call_isolated(f"{__name__}.{function}", job)
    except ImagenetOptError as error:
        raise TurnFailed(f"{type(error).__name__}: {error}") from error


def measured(job: BenchJob) -> dict[str, Any]:
    """Measure in this process; a BenchTurn as plain values."""
    torch.manual_seed(job.loading.seed)
    own = {CEILING: ceiling}.get(job.row, ours)
    loader: Iterable[Sized] = PEERS[job.row].function()(job) if job.row in PEERS else own(job)
    return asdict(take_turn(loader, job))


def packed(job: BenchJob) -> None:
    job.packed.mkdir()
    PEERS[job.row].function("pack")(job)


def take_turn(loader: Iterable[Sized], job: BenchJob) -> BenchTurn:
    """Discard the first batches of a loader, and time the next. The length of a batch is its number of images.

    Raises ValueError if there are too few batches, TurnFailed if a peer's batches are not those requested.
    """
    batches = iter(loader)
    for batch in islice(batches, job.num_warmup):
        if job.row in PEERS:
            check_peer_batch(batch, job)
        del batch
    pop_metrics = loader.pop_metrics if isinstance(loader, MeasuredLoader) else dict
    pop_metrics()
    _wait_for_device(job)
    started, cpu_before = time.perf_counter(), busy_seconds_of_descendants()
    sizes = [len(batch) for batch in islice(batches, job.num_batches)]
    _wait_for_device(job)
    seconds, cpu_seconds = time.perf_counter() - started, busy_seconds_of_descendants() - cpu_before
    if len(sizes) < job.num_batches:
        raise ValueError(f"the loader ended after {len(sizes)} of {job.num_batches} timed batches")
    return BenchTurn(sum(sizes), seconds, cpu_seconds, pop_metrics())


def _wait_for_device(job: BenchJob) -> None:
    if job.device == "cuda" and job.row in OWN:
        torch.cuda.synchronize()


def check_peer_batch(images: Any, job: BenchJob) -> None:
    """Check that a peer delivers uint8 images of the requested shape. Raises TurnFailed otherwise, since the
    comparison would be unfair."""
    count, size = job.loading.batch_size, job.loading.image_size
    shape, kind = tuple(images.shape), str(images.dtype).removeprefix("torch.")
    if kind != "uint8" or shape not in ((count, 3, size, size), (count, size, size, 3)):
        raise TurnFailed(f"gave {kind} {shape}, not uint8 images of {size} x {size} in batches of {count}")


def ours(job: BenchJob) -> DevicePrefetcher:
    """The loader that training uses, without the processing of batches on the device."""
    loading = replace(
        job.loading,
        resize_on="worker" if job.row == WORKER else "device",
        region_decode=job.loading.region_decode or job.row == REGION,
        num_workers=job.num_workers,
        prefetch_factor=job.prefetch_factor,
        samples_per_epoch=None,
    )
    loader = train_loader(job.long_index(), loading, RankInfo(device=torch.device(job.device)))
    loader.finish = lambda batch: batch  # type: ignore[assignment,return-value]
    return loader


def ceiling(job: BenchJob) -> Iterable[Sized]:
    """Our region decode alone: each worker decodes crops of files in memory, and sends only their number."""
    return DataLoader(_Crops(job), batch_size=None, num_workers=max(1, job.num_workers), multiprocessing_context="fork")


@dataclass
class _Crops(IterableDataset[range]):
    job: BenchJob

    def __iter__(self) -> Iterator[range]:
        worker, codec = get_worker_info(), region_codec()
        if not (crops := list(crops_in_memory(self.job, 0 if worker is None else worker.id))):
            raise ValueError("nvImageCodec can decode a region of none of the files")
        endless_crops, batch_size = cycle(crops), self.job.loading.batch_size
        while True:
            for encoded, box in islice(endless_crops, batch_size):
                codec.decode(codec.parse(encoded), box)
            yield range(batch_size)


def crops_in_memory(job: BenchJob, worker: int) -> Iterator[tuple[bytes, Box]]:
    """Random files with the crops of training; without files that nvImageCodec refuses."""
    loading, codec = job.loading, region_codec()
    plan = partial(train_crops, seed=loading.seed, scale=loading.crop_scale)
    store = store_of(job.index, replace(loading, added_latency_ms=0.0, max_mb_per_second=None))
    for i in np.random.default_rng([loading.seed, worker]).permutation(len(job.index))[:_IN_MEMORY]:
        with suppress(OSError, BadSample):
            (encoded,) = store.read_many(np.array([i]))
            if (stream := codec.parse(encoded)) is None:
                continue
            height, width = (np.array([side]) for side in (stream.height, stream.width))
            crops, _ = plan(SampleIds(np.array([i]), np.zeros(1, np.int64), 1), height, width, loading.image_size)
            box = (int(crops.tops[0]), int(crops.lefts[0]), int(crops.heights[0]), int(crops.widths[0]))
            if codec.decode(stream, box) is not None:
                yield encoded, box
