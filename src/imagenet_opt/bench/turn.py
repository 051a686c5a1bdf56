"""Runs one turn of the benchmark in a process of its own, so that loaders cannot influence each other."""

import time
from collections.abc import Iterable, Sized
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import psutil

from imagenet_opt.bench.job import CEILING, OWN, Job
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.isolated import call_isolated


@dataclass(frozen=True)
class Turn:
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


def run_turn(job: Job) -> Turn:
    """Measure one row in a process of its own. Raises TurnFailed."""
    return Turn(**_isolated("measured", job))


def write_packed(job: Job) -> None:
    """Write the files in the peer's own format to `job.packed`. Raises TurnFailed."""
    _isolated("packed", job)


def _isolated(function: str, job: Job) -> Any:
    try:
        return call_isolated(f"{__name__}.{function}", job)
    except ImagenetOptError as error:
        raise TurnFailed(f"{type(error).__name__}: {error}") from error


def measured(job: Job) -> dict[str, Any]:
    """Measure in this process; a Turn as plain values."""
    import torch

    from imagenet_opt.bench import own_loaders

    torch.manual_seed(job.loading.seed)
    if job.row in PEERS:
        loader = PEERS[job.row].function()(job)
    else:
        loader = own_loaders.ceiling(job) if job.row == CEILING else own_loaders.Ours(job)
    return asdict(take_turn(loader, job))


def packed(job: Job) -> None:
    job.packed.mkdir()
    PEERS[job.row].function("pack")(job)


def take_turn(loader: Iterable[Sized], job: Job) -> Turn:
    """Discard the first batches of a loader, and time the next. The length of a batch is its number of images.

    Raises ValueError if there are too few batches, TurnFailed if a peer's batches are not those requested.
    """
    batches = iter(loader)
    for batch in islice(batches, job.num_warmup):
        if job.row in PEERS:
            check_peer_batch(batch, job)
        del batch
    pop_metrics = getattr(loader, "pop_metrics", dict)
    pop_metrics()
    _wait_for_device(job)
    started, cpu_before = time.perf_counter(), _cpu_seconds()
    sizes = [len(batch) for batch in islice(batches, job.num_batches)]
    _wait_for_device(job)
    seconds, cpu_seconds = time.perf_counter() - started, _cpu_seconds() - cpu_before
    if len(sizes) < job.num_batches:
        raise ValueError(f"the loader ended after {len(sizes)} of {job.num_batches} timed batches")
    return Turn(sum(sizes), seconds, cpu_seconds, pop_metrics())


def _wait_for_device(job: Job) -> None:
    import torch

    if job.device == "cuda" and job.row in OWN:
        torch.cuda.synchronize()


def _cpu_seconds() -> float:
    """CPU time so far of this process and of all processes that it has started and that still run."""
    own, seconds = psutil.Process(), 0.0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a child may end meanwhile
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def check_peer_batch(images: Any, job: Job) -> None:
    """Check that a peer delivers uint8 images of the requested shape. Raises TurnFailed otherwise, since the
    comparison would be unfair."""
    count, size = job.loading.batch_size, job.loading.image_size
    shape, kind = tuple(images.shape), str(images.dtype).removeprefix("torch.")
    if kind != "uint8" or shape not in ((count, 3, size, size), (count, size, size, 3)):
        raise TurnFailed(f"gave {kind} {shape}, not uint8 images of {size} x {size} in batches of {count}")
