"""Plans a benchmark: its rows, the settings of each turn, and the rounds."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from imagenet_opt.bench.converted_files import fingerprint
from imagenet_opt.bench.job import CEILING, OWN, REGION, WORKER, Job
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.same_bytes import encoded_again
from imagenet_opt.bench.turn import Turn, run_turn, write_packed
from imagenet_opt.compare.rounds import Rounds, in_rounds
from imagenet_opt.data.budget import LoaderBudget, fit_loader
from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.remote_index import RemoteIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.index.subset import subset
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.order import TrainOrder
from imagenet_opt.display.progress import announced
from imagenet_opt.errors import ConfigError, DataError, printable
from imagenet_opt.measure.stats.rounds import TurnFailed

LEAST_WARMUP = 10
"""Least discarded batches; workers x prefetch if that is more, since so many batches may be ready at the start."""
MOST_PACKED = 20_000
"""Most files that are converted to another loader's format; of a larger data set, all rows read one random part."""


@dataclass(frozen=True)
class Plan:
    """A benchmark before its measurements.

    job: settings that all turns share. sides: names of the rows, in order. absent: rows that cannot be measured, each
    with the reason. num_found: number of files of the whole data set; the job may use a part. cache: folder for packed
    copies.
    """

    job: Job
    sides: tuple[str, ...]
    absent: dict[str, str]
    num_found: int
    cache: Path


def make_plan(
    index: FileIndex | ShardIndex,
    loading: LoaderOptions,
    *,
    against: tuple[str, ...],
    num_batches: int,
    has_gpu: bool,
    cache: Path,
    same_bytes: bool = False,
) -> Plan:
    """Decide what to measure. same_bytes: whether all rows read re-encoded files (see encoded_again).

    Raises ConfigError, BatchTooLarge, DataError.
    """
    if (against or same_bytes) and isinstance(index, ShardIndex | RemoteIndex):
        name, what = "--against" if against else "--same-bytes", "packed"
        if isinstance(index, RemoteIndex):
            what = f"a URL; leave {name} out, or copy the data set to a disk and set data.root to its folder"
        raise ConfigError(f"{name} needs a folder of image files, but {printable(index.place)} (data.root) is {what}")
    TrainOrder(num_samples=len(index), batch_size=loading.batch_size, seed=loading.seed)  # refuses too large a batch
    budget = fit_loader(
        num_workers=loading.num_workers,
        prefetch_factor=loading.prefetch_factor,
        batch_bytes=3 * loading.batch_size * loading.image_size**2,
    )
    own_rows = _own_rows(loading.resize_on, has_gpu=has_gpu, compares=bool(against))
    others = (*((CEILING,) if REGION in own_rows else ()), *against)
    absent = {name: reason for name in others if (reason := _why_not(name, loading))}
    sides = (*own_rows, *(name for name in others if name not in absent))
    files = index
    if len(index) > MOST_PACKED and (same_bytes or any(map(_packs, sides))):
        rows = np.random.default_rng(loading.seed).choice(len(index), MOST_PACKED, replace=False)
        files = subset(index, np.sort(rows))
    if same_bytes and isinstance(files, FileIndex):
        files = encoded_again(files, cache / "bench")
    job = replace(_job(files, loading, budget, num_batches), device="cuda" if has_gpu and not against else "cpu")
    return Plan(job, sides, absent, len(index), cache)


def _job(files: FileIndex | ShardIndex, loading: LoaderOptions, budget: LoaderBudget, num_batches: int) -> Job:
    """The settings of all turns. No epoch ends within a turn."""
    workers = max(1, budget.num_workers)
    num_ready = workers * budget.prefetch_factor
    num_warmup = max(LEAST_WARMUP, num_ready)
    num_batches = -(-num_batches // workers) * workers  # equal shares of the workers, whose batches arrive in bursts
    return Job(
        side="",
        index=files,
        loading=loading,
        passes=-(-(num_warmup + num_batches + 2 * num_ready) * loading.batch_size // len(files)),
        num_workers=budget.num_workers,
        prefetch_factor=budget.prefetch_factor,
        num_warmup=num_warmup,
        num_batches=num_batches,
    )


def measure(plan: Plan, *, repeats: int) -> Rounds[Turn]:
    """Write copies of the data in the peers' file formats, then measure all rows in rounds and announce each turn.

    A row that fails is left out of later rounds; if one of our own rows fails, DataError is raised.
    """
    packing = [side for side in plan.sides if _packs(side)]
    fills = isinstance(plan.job.index, RemoteIndex) and plan.job.loading.cache_gb != 0
    with announced(fills + len(packing) + repeats * len(plan.sides)) as announce:
        turns, failures = {}, {}
        if fills:  # all turns have the same samples, and the first turn would be slower than the others
            announce("a turn that fills the local cache")
            with suppress(TurnFailed):
                run_turn(replace(plan.job, side=plan.sides[0]))
        for side in plan.sides:
            if side in packing:
                announce(f"files for {side}")
            try:
                turns[side] = _turn(_prepared(plan, side))
            except TurnFailed as error:
                failures[side] = str(error)

        def turn(side: str, number: int) -> Turn:
            announce(f"round {number + 1} of {repeats}: {side}")
            return turns[side]()

        rounds = in_rounds(turns, turn, range(repeats))
    return Rounds(rounds.results, failures | rounds.failures, rounds.seconds)


def _packs(side: str) -> bool:
    """Whether the loader reads a file format of its own."""
    return side in PEERS and PEERS[side].packs


def _prepared(plan: Plan, side: str) -> Job:
    """The job of a row, after its packed files were written. Raises TurnFailed."""
    job = replace(plan.job, side=side)
    if _packs(side):
        try:
            files = fingerprint(PEERS[side].version, replace(job, passes=1).samples())
        except OSError as error:
            raise TurnFailed(f"cannot read the files: {error}") from error
        job = replace(job, packed=plan.cache / "bench" / f"{side}-{files}")
        write_packed(job)
    return job


def _turn(job: Job) -> Callable[[], Turn]:
    def turn_of_ours() -> Turn:
        try:
            return run_turn(job)
        except TurnFailed as error:
            raise DataError(f"the loader ended ({job.side}): {error}") from error

    return turn_of_ours if job.side in OWN else partial(run_turn, job)


def _own_rows(resize_on: str, *, has_gpu: bool, compares: bool) -> tuple[str, ...]:
    """Our rows. With `auto`: both, without a GPU or beside other loaders, since other loaders resize in workers."""
    if resize_on == "auto":
        return (REGION,) if has_gpu and not compares else OWN
    return (WORKER,) if resize_on == "worker" else (REGION,)


def _why_not(name: str, loading: LoaderOptions) -> str | None:
    """The reason why a row cannot be measured; None if it can."""
    if name == CEILING:
        return None if find_spec("nvidia") and find_spec("nvidia.nvimgcodec") else "nvImageCodec is not installed"
    peer = PEERS[name]
    if not peer.installed:
        return f"not installed: {peer.install}"
    if loading.max_mb_per_second is not None:
        return "not with data.max_mb_per_second"
    return "not with data.added_latency_ms" if loading.added_latency_ms and not peer.latency else None
