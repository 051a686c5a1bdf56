"""A benchmark: the files that all rows read, the settings of all turns, and the rounds."""

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from imagenet_opt import machine
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.turn import CEILING, OWN, REGION, WORKER, BenchJob, BenchTurn, run_turn, write_packed
from imagenet_opt.compare.rounds import Rounds, in_rounds
from imagenet_opt.data.budget import fit_loader
from imagenet_opt.data.index.folder_index import scan_split
from imagenet_opt.data.index.split import Split, subset
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.order import TrainOrder
from imagenet_opt.display.progress import announced
from imagenet_opt.errors import BadSample, ConfigError, DataError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.pack.image import PackOptions, prepare

_LEAST_WARMUP = 10
"""Least discarded batches; workers x prefetch if that is more, since so many batches may be ready at the start."""
MOST_FILES = 20_000
"""Most files that a benchmark reads; of a larger data set, all rows read one random part, of shards the first part."""
_ENCODING = PackOptions(quality=90, reencode="all")
"""The quality at which FFCV writes its own files."""


def rows_of(loading: LoaderOptions, against: Sequence[str]) -> list[str]:
    """The rows of the table, in order. data.resize_on=auto: both of ours."""
    own = {"worker": [WORKER], "device": [REGION]}.get(loading.resize_on, list(OWN))
    return [*own, *([CEILING] if REGION in own else []), *against]


def job_of(index: Split, loading: LoaderOptions, num_batches: int, device: str = "cpu") -> BenchJob:
    """The settings of all turns. No epoch ends within a turn. Raises BatchTooLarge."""
    TrainOrder(num_samples=len(index), batch_size=loading.batch_size, seed=loading.seed)  # refuses too large a batch
    budget = fit_loader(
        num_workers=loading.num_workers,
        prefetch_factor=loading.prefetch_factor,
        batch_bytes=3 * loading.batch_size * loading.image_size**2,
    )
    files, workers = _part(index, loading), max(1, budget.num_workers)
    num_ready = workers * budget.prefetch_factor
    num_warmup = max(_LEAST_WARMUP, num_ready)
    num_batches = -(-num_batches // workers) * workers  # equal shares of the workers, whose batches arrive in bursts
    return BenchJob(
        index=files,
        loading=loading,
        passes=-(-(num_warmup + num_batches + 2 * num_ready) * loading.batch_size // len(files)),
        num_workers=budget.num_workers,
        prefetch_factor=budget.prefetch_factor,
        num_warmup=num_warmup,
        num_batches=num_batches,
        device=device,
    )


def _part(index: Split, loading: LoaderOptions) -> Split:
    most = max(loading.batch_size, MOST_FILES)
    if len(index) <= most or index.is_remote:
        return index
    if index.containers:  # whose neighbours are read together
        return subset(index, np.arange(most))
    return subset(index, np.sort(np.random.default_rng(loading.seed).choice(len(index), most, replace=False)))


def measure(
    job: BenchJob, rows: Sequence[str], *, repeats: int, cache: Path, same_bytes: bool = False
) -> Rounds[BenchTurn]:
    """Measure all rows in rounds, after a round that does not count: it brings the files into memory, or those of a URL
    into the local cache. A row that fails has no further rounds.

    cache: a folder for copies of the files, which are removed at the end. same_bytes: whether all rows read files that
    are encoded again. Raises ConfigError, DataError.
    """
    copies = same_bytes or any(PEERS[row].packs for row in rows if row in PEERS)
    place = _folder_for_copies(cache) if copies else nullcontext(Path())
    with place as folder, announced((repeats + 1) * len(rows)) as announce:
        if same_bytes:
            announce("encoding all files again")
            index = encoded_again(job.index, folder)
            job = replace(job, index=index, passes=-(-job.passes * len(job.index) // len(index)))

        def turn(row: str, number: int) -> BenchTurn:
            announce(f"round {number} of {repeats}: {row}" if number else f"{row}, a turn that does not count")
            own = replace(job, row=row, packed=folder / row)
            if number == 0:
                _prepare(own)
            return run_turn(own)

        first = in_rounds(rows, turn, [0])
        if not first.complete:
            raise DataError(f"no loader could be measured: {'; '.join(first.reasons)}")
        rounds = in_rounds(first.complete, turn, range(1, repeats + 1))
    rounds.failures |= first.failures
    return rounds


@contextmanager
def _folder_for_copies(cache: Path) -> Iterator[Path]:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="bench_", dir=cache, ignore_cleanup_errors=True)
    except OSError as error:
        raise DataError(f"copies of the files cannot be written (data.cache_dir): {error}") from error
    with folder as name:
        yield Path(name)


def _prepare(job: BenchJob) -> None:
    """Write a peer's copy of the files. Raises TurnFailed if the peer cannot be measured."""
    if (peer := PEERS.get(job.row)) is None:
        return
    if not peer.installed:
        raise TurnFailed(f"not installed: {peer.install}")
    if job.loading.max_mb_per_second is not None:
        raise TurnFailed("not with data.max_mb_per_second")
    if job.loading.added_latency_ms and not peer.latency:
        raise TurnFailed("not with data.added_latency_ms")
    if peer.packs:
        write_packed(job)


def check_files(index: Split, option: str) -> None:
    """Raise ConfigError unless the data set is a folder of files. option: the option that needs them."""
    if index.is_remote or index.containers:
        what = "is a URL" if index.is_remote else "has many images in a file"
        raise ConfigError(f"{option} needs a folder of files, but {index.place} (data.root) {what}")


def encoded_again(index: Split, folder: Path) -> Split:
    """The files of `index`, encoded again in `folder`, so that all loaders read the same bytes. Files that cannot be
    decoded are left out. Raises DataError if nothing can be written."""

    def write(number: int) -> None:
        with suppress(BadSample):
            encoded, extension = prepare(Path(index.path(number)).read_bytes(), _ENCODING)
            class_folder = folder / "train" / index.classes[index.labels[number]]
            (class_folder / f"{number}.{extension}").write_bytes(encoded)

    try:
        for name in index.classes:
            (folder / "train" / name).mkdir(parents=True)
        with ThreadPoolExecutor(machine.usable_cpus()) as threads:
            list(threads.map(write, range(len(index))))
    except OSError as error:
        raise DataError(f"cannot write the files again (data.cache_dir): {error}") from error
    return scan_split(folder, "train")
