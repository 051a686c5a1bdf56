"""Plans a benchmark: its rows, the settings of each turn, and the rounds."""

from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from imagenet_opt import machine
from imagenet_opt.bench.files import encoded_again, fingerprint, read_into_memory
from imagenet_opt.bench.job import CEILING, OWN, REGION, WORKER, Job
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.turn import Turn, run_turn, write_packed
from imagenet_opt.compare.rounds import Rounds, in_rounds
from imagenet_opt.data.budget import LoaderBudget, fit_loader
from imagenet_opt.data.decode.image_file import REFUSED, open_image
from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.remote_index import RemoteIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.index.subset import subset
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.order import TrainOrder
from imagenet_opt.display.progress import announced
from imagenet_opt.errors import ConfigError, DataError, printable
from imagenet_opt.measure.stats.rounds import TurnFailed

LEAST_WARMUP = 10
"""Least discarded batches; workers x prefetch if that is more, since so many batches may be ready at the start."""
MOST_FILES = 20_000
"""Most files that a benchmark reads; of a larger data set, all rows read one random part, of shards the first part."""
_MOST_OF_MEMORY = 0.5
"""Share of the available memory that is surely left for the page cache."""
_NUM_SAMPLED = 200
"""Files whose sizes give the estimated means."""


@dataclass(frozen=True)
class Plan:
    """A benchmark before its measurements.

    job: settings that all turns share. sides: names of the rows, in order. absent: rows that cannot be measured, each
    with the reason. data: facts about the data set, of which the job may use a part. cache: folder for packed copies.
    """

    job: Job
    sides: tuple[str, ...]
    absent: dict[str, str]
    data: dict[str, Any]
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
    files, data = _part(index, loading), {"files": len(index)}
    if same_bytes and isinstance(files, FileIndex):
        files = encoded_again(files, cache / "bench")
    job = replace(_job(files, loading, budget, num_batches), device="cuda" if has_gpu and not against else "cpu")
    return Plan(job, sides, absent, data | _data_facts(files, loading), cache)


def _part(index: FileIndex | ShardIndex, loading: LoaderOptions) -> FileIndex | ShardIndex:
    """The files that all rows read: as many as the memory keeps, at least those of a batch; below a URL all."""
    if isinstance(index, RemoteIndex):
        return index
    num_bytes = max(1.0, 1e3 * _data_facts(index, loading)["mean_kb"])
    most = max(loading.batch_size, min(MOST_FILES, int(_MOST_OF_MEMORY * machine.available_memory() / num_bytes)))
    if len(index) <= most:
        return index
    if isinstance(index, ShardIndex):  # in random order since they were packed
        return subset(index, np.arange(most))
    return subset(index, np.sort(np.random.default_rng(loading.seed).choice(len(index), most, replace=False)))


def _data_facts(index: FileIndex | ShardIndex, loading: LoaderOptions) -> dict[str, Any]:
    """Number of files, and their mean size in KB and pixels, estimated from a sample without unreadable files."""
    store, sizes = store_of(index, loading), []
    for i in np.unique(np.linspace(0, len(index) - 1, _NUM_SAMPLED).astype(np.int64)):
        with suppress(*REFUSED):
            (encoded,) = store.read_many(np.array([i]))
            sizes.append((len(encoded), *open_image(encoded).size))
    num_bytes, width, height = (mean(column) for column in zip(*sizes, strict=True)) if sizes else (0, 0, 0)
    return {
        "folder": index.place,
        "files_used": len(index),
        "mean_kb": round(num_bytes / 1e3, 1),
        "mean_width": round(width),
        "mean_height": round(height),
        "storage": machine.mount_of(index.place),
        "added_latency_ms": loading.added_latency_ms,
        "max_mb_per_second": loading.max_mb_per_second,
    }


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


def measure(plan: Plan, *, repeats: int) -> tuple[Rounds[Turn], str]:
    """Write copies of the data in the peers' file formats, read all files once, then measure all rows in rounds.
    Returns the rounds, and the state of the files in words.

    A row that fails is left out of later rounds; if one of our own rows fails, DataError is raised.
    """
    jobs, failures = dict[str, Job](), dict[str, str]()
    with announced(sum(map(_packs, plan.sides))) as announce:
        for side in plan.sides:
            if _packs(side):
                announce(f"files for {side}")
            try:
                jobs[side] = _prepared(plan, side)
            except TurnFailed as error:
                failures[side] = str(error)
    state = _settle_files(plan, jobs)
    with announced(repeats * len(jobs)) as announce:

        def turn(side: str, number: int) -> Turn:
            announce(f"round {number + 1} of {repeats}: {side}")
            try:
                return run_turn(jobs[side])
            except TurnFailed as error:
                if side in OWN:
                    raise DataError(f"the loader ended ({side}): {error}") from error
                raise

        rounds = in_rounds(jobs, turn, range(repeats))
    rounds.failures |= failures
    return rounds, state


def _settle_files(plan: Plan, jobs: dict[str, Job]) -> str:
    """Bring the files into the state in which all turns read them, and return it in words. Without this, the first turn
    would read files from the storage, and all others from memory."""
    job = plan.job
    if not isinstance(job.index, RemoteIndex):
        return read_into_memory(job.index, job.loading, [each.packed for each in jobs.values() if each.packed.name])
    if job.loading.cache_gb == 0:
        return "samples from the URL in each turn"
    with announced(1) as announce, suppress(TurnFailed):
        announce("a turn that fills the local cache")
        run_turn(jobs[plan.sides[0]])
    return "samples in the local cache"


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
