"""Runs one turn of the benchmark in a process of its own, so that loaders cannot influence each other."""

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sized
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from imagenet_opt import machine
from imagenet_opt.bench.job import CEILING, OWN, Job
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats import physics
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.isolated import call_isolated


@dataclass(frozen=True)
class Turn:
    """Result of a turn.

    first_batch_seconds: from creating the loader to its first batch. stages: the loader's own times in the measured
    window. num_made: images whose batches were made within the window; None if the batches do not have this time.
    """

    num_images: int
    seconds: float
    first_batch_seconds: float
    stages: dict[str, float]
    num_made: int | None = None

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
    warmed_up = 1 + sum(1 for _ in islice(batches, num_warmup - 1))
    pop_metrics: Callable[[], dict[str, float]] = getattr(loader, "pop_metrics", dict)
    pop_metrics()
    settle()
    started = time.perf_counter()
    sizes: list[int] = []
    fresh: list[int] = []
    tells = True
    for batch in islice(batches, num_batches):
        made_at = getattr(getattr(batch, "stats", None), "made_at", None)
        tells &= made_at is not None
        sizes.append(len(batch))
        fresh.append(len(batch) if made_at is not None and made_at >= started else 0)
    settle()
    seconds = time.perf_counter() - started
    if len(sizes) < num_batches:
        raise ValueError(f"the loader ended after {warmed_up + len(sizes)} of {num_warmup + num_batches} batches")
    return Turn(sum(sizes), seconds, first_batch_seconds, pop_metrics(), sum(fresh) if tells else None)


def run_turn(job: Job) -> Turn:
    """Measure in a process of its own. Raises TurnFailed with the reason, also for an impossible rate; for our own
    rows an ImagenetOptError."""
    turn = Turn(**_apart(_turn, job, job))
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
    """Write the files in the peer's own format to `job.packed`, completely or not at all; nothing if they exist.
    Raises TurnFailed."""
    if job.packed.is_dir():
        return
    try:
        job.packed.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=job.packed.parent, prefix="new_") as scratch:
            fresh = Path(scratch, "packed")
            fresh.mkdir()
            _apart(_pack, job, (job, fresh))
            os.replace(fresh, job.packed)
    except OSError as error:
        if job.packed.is_dir():  # another process was faster
            return
        raise TurnFailed(f"cannot write its copy of the files (data.cache_dir): {error}") from error


def _apart(function: Any, job: Job, asked: Any) -> Any:
    try:
        return call_isolated(f"{__name__}.{function.__name__}", asked)
    except ImagenetOptError as error:
        if job.side in OWN:
            raise
        raise TurnFailed(str(error)) from error


def _turn(job: Job) -> dict[str, Any]:
    import torch

    from imagenet_opt.bench import own_loaders

    torch.manual_seed(job.loading.seed)
    own: dict[str, Any] = dict.fromkeys(OWN, own_loaders.Ours) | {CEILING: own_loaders.ceiling}
    make = own[job.side] if job.side in own else PEERS[job.side].function()
    check = partial(check_peer_batch, job=job) if job.side in PEERS else lambda batch: None
    return asdict(
        take_turn(
            lambda: make(job),
            num_warmup=job.num_warmup,
            num_batches=job.num_batches,
            check=check,
            settle=torch.cuda.synchronize if job.device == "cuda" else lambda: None,
        )
    )


def _pack(asked: tuple[Job, Path]) -> None:
    job, folder = asked
    PEERS[job.side].function("pack")(job, folder)


def check_peer_batch(images: Any, job: Job) -> None:
    """Check that a peer delivers uint8 images of the requested shape. Raises TurnFailed otherwise, since the
    comparison would be unfair."""
    count, size = job.loading.batch_size, job.loading.image_size
    shape, kind = tuple(images.shape), str(images.dtype).removeprefix("torch.")
    if kind != "uint8" or shape not in ((count, 3, size, size), (count, size, size, 3)):
        raise TurnFailed(f"gave {kind} {shape}, not uint8 images of {size} x {size} in batches of {count}")
