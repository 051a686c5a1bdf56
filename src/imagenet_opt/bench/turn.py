"""Runs one turn of the benchmark in a process of its own, so that loaders cannot influence each other."""

import time
from collections.abc import Callable, Iterable, Sized
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from imagenet_opt import machine
from imagenet_opt.bench.files import write_once
from imagenet_opt.bench.job import CEILING, OWN, Job
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.data.index.remote_index import RemoteIndex
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats import physics
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.isolated import call_isolated
from imagenet_opt.processes import wait_for_server


@dataclass(frozen=True)
class Turn:
    """Result of a turn.

    first_batch_seconds: from creating the loader to its first batch. stages: the loader's own times in the measured
    window. num_made: images whose batches were made within the window; None if batches do not tell when they were made.
    cpu_seconds: CPU time of all threads and processes of the loader in the window.
    """

    num_images: int
    seconds: float
    first_batch_seconds: float
    stages: dict[str, float]
    num_made: int | None = None
    cpu_seconds: float = 0.0

    @property
    def images_per_second(self) -> float:
        return self.num_images / self.seconds


def take_turn(
    make_loader: Callable[[], Iterable[Sized]],
    *,
    num_warmup: int,
    num_batches: int,
    check: Callable[[Any], None] = lambda batch: None,
    settle: Callable[[], None] = lambda: None,
) -> Turn:
    """Create a loader, discard its first `num_warmup` batches, and time the next `num_batches`.

    The length of a batch is its number of images. check: called with the first batch. settle: waits for unfinished
    work of the device. If the loader has a method `pop_metrics`, it returns the times that the loader itself measured.
    Raises ValueError if there are too few batches.
    """
    began = time.perf_counter()
    loader = make_loader()
    batches = iter(loader)
    if (first := next(batches, None)) is None:
        raise ValueError("the loader gave no batch")
    settle()
    first_batch_seconds = time.perf_counter() - began
    check(first)
    del first
    num_discarded = 1 + sum(1 for _ in islice(batches, num_warmup - 1))
    pop_metrics: Callable[[], dict[str, float]] = getattr(loader, "pop_metrics", dict)
    pop_metrics()
    settle()
    started, cpu_before = time.perf_counter(), _cpu_seconds()
    sizes: list[int] = []
    made_at: list[float | None] = []
    for batch in islice(batches, num_batches):
        sizes.append(len(batch))
        made_at.append(getattr(getattr(batch, "stats", None), "made_at", None))
    settle()
    seconds, cpu_seconds = time.perf_counter() - started, _cpu_seconds() - cpu_before
    if len(sizes) < num_batches:
        raise ValueError(f"the loader ended after {num_discarded + len(sizes)} of {num_warmup + num_batches} batches")
    sizes_made = [size for size, at in zip(sizes, made_at, strict=True) if at is not None and at >= started]
    num_made = None if None in made_at else sum(sizes_made)
    return Turn(sum(sizes), seconds, first_batch_seconds, pop_metrics(), num_made, cpu_seconds)


def _cpu_seconds() -> float:
    """CPU time so far of this process and of all processes that it has started and that still run."""
    own, seconds = psutil.Process(), 0.0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a child may end meanwhile
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def run_turn(job: Job) -> Turn:
    """Measure one row in a process of its own. Raises TurnFailed with the reason, also for an impossible rate. Raises
    ImagenetOptError for an error of our own rows."""
    turn = Turn(**_isolated(_turn, job, job))
    if reason := physics.impossible(claim(turn, job)):
        raise TurnFailed(f"not measured: {reason}; raise --batches")
    return turn


def claim(turn: Turn, job: Job) -> physics.Claim:
    """The turn's claim, for the check of physical limits. Each image is written at least once, at its full size."""
    workers, batch = max(1.0, turn.stages.get("num_workers", job.num_workers)), job.loading.batch_size
    decode = turn.stages.get("loader/decode_seconds")
    ahead = (2 + job.prefetch_factor) * workers * batch
    return physics.Claim(
        num_images=turn.num_images,
        seconds=turn.seconds,
        num_made=turn.num_made,
        slack=min(ahead, turn.num_images / 2),
        cpus=float(max(workers, machine.usable_cpus())) if decode is None else workers,
        busy_seconds=None if decode is None else decode / batch,
        megapixels=job.loading.image_size**2 / 1e6,
    )


def write_packed(job: Job) -> None:
    """Write the files in the peer's own format to `job.packed`, unless they exist. Raises TurnFailed."""
    try:
        write_once(job.packed, lambda folder: _isolated(_pack, job, (job, folder)))
    except OSError as error:
        raise TurnFailed(f"cannot write its copy of the files (data.cache_dir): {error}") from error


def _isolated(function: Any, job: Job, argument: Any) -> Any:
    try:
        return call_isolated(f"{__name__}.{function.__name__}", argument)
    except ImagenetOptError as error:
        if job.side in OWN:
            raise
        raise TurnFailed(str(error)) from error


def _turn(job: Job) -> dict[str, Any]:
    import torch

    from imagenet_opt.bench import own_loaders

    torch.manual_seed(job.loading.seed)
    if isinstance(job.index, RemoteIndex):
        wait_for_server()
    is_peer = job.side in PEERS
    make = PEERS[job.side].function() if is_peer else own_loaders.ceiling if job.side == CEILING else own_loaders.Ours
    turn = take_turn(
        partial(make, job),
        num_warmup=job.num_warmup,
        num_batches=job.num_batches,
        check=partial(check_peer_batch, job=job) if is_peer else lambda batch: None,
        settle=torch.cuda.synchronize if job.device == "cuda" else lambda: None,
    )
    return asdict(turn)


def _pack(job_and_folder: tuple[Job, Path]) -> None:
    job, folder = job_and_folder
    PEERS[job.side].function("pack")(job, folder)


def check_peer_batch(images: Any, job: Job) -> None:
    """Check that a peer delivers uint8 images of the requested shape. Raises TurnFailed otherwise, since the
    comparison would be unfair."""
    count, size = job.loading.batch_size, job.loading.image_size
    shape, kind = tuple(images.shape), str(images.dtype).removeprefix("torch.")
    if kind != "uint8" or shape not in ((count, 3, size, size), (count, size, size, 3)):
        raise TurnFailed(f"gave {kind} {shape}, not uint8 images of {size} x {size} in batches of {count}")
