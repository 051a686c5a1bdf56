"""Study `read`: reading alone, by workers, batch size and requests in flight, from memory and from storage."""

import itertools
import math
import time
from functools import partial
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, PositiveInt
from torch.utils.data import DataLoader, Dataset

from imagenet_opt.config.compose import composed
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.loader_workers import ForkedWorkers, WorkerStart, ignore_group_signals
from imagenet_opt.data.order import block_size_for
from imagenet_opt.data.prefetcher import worker_errors
from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.display.progress import announced
from imagenet_opt.display.table import Column, Table
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.remote_samples import RemoteSamples
from imagenet_opt.probe.samples import Rows, Samples, in_blocks
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.processes import ServerContext
from imagenet_opt.study.kinds.comparison import Comparison, Setting, run_rounds
from imagenet_opt.study.request import Request, checked_options

_WARM_SHARE, _WARM_FILES = 4, 4096
"""A quarter of the files is kept in memory, at most 4096: far more than a CPU's caches hold. The other files are read
from storage."""
_ENOUGH = 0.8
"""A turn that lasts less than this part of the requested time is repeated with more files."""


class Options(BaseModel, extra="forbid"):
    """num_workers: numbers of processes. reads_in_flight: requests of each process. batch_size: in files."""

    num_workers: tuple[PositiveInt, ...] = Field(min_length=1)
    reads_in_flight: tuple[PositiveInt, ...] = Field(min_length=1)
    batch_size: tuple[PositiveInt, ...] = Field(min_length=1)
    state: tuple[Literal["cold", "warm"], ...] = Field(min_length=1)


class Way(NamedTuple):
    """How files are read. depth: simultaneous requests of each of `num_workers` processes."""

    state: str
    num_workers: int
    depth: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.state}, workers {self.num_workers}, in flight {self.depth}, batch {self.batch_size}"


class ReadPass(NamedTuple):
    """Totals of all processes, from the first request to the last answer. is_cold: whether the kernel confirms that no
    file was in memory."""

    seconds: float
    num_files: int
    num_bytes: int
    is_cold: bool


def run(request: Request) -> list[Table]:
    """Measure and return the table. Raises ImagenetOptError."""
    options, testbed = checked_options(Options, request), Testbed(composed(request.overrides))
    samples, index, shuffle = testbed.samples, testbed.samples.index, testbed.loading.shuffle
    if shuffle == "block":
        samples.rows = in_blocks(len(index), block_size_for(min(options.batch_size)))
    warm = read_warm(samples) if "warm" in options.state else samples.rows[:0]
    grid = itertools.product(options.state, options.num_workers, options.reads_in_flight, options.batch_size)
    ways = {str(way): way for way in itertools.starmap(Way, grid)}
    simplest = {way.state: name for name, way in reversed(ways.items())}
    settings = {
        name: Setting(
            tuple(map(str, way)),
            partial(turn, samples, warm, way, request.seconds),
            against=None if name == simplest[way.state] else simplest[way.state],
            plot=f"Reading, batch {way.batch_size}",
            curve=f"{way.state}, workers {way.num_workers}",
            x=float(way.depth),
        )
        for name, way in ways.items()
    }
    plain = "one object each" if isinstance(samples, RemoteSamples) else "a folder"
    kind = f"packed (shards: {len(index.shards)})" if isinstance(index, ShardIndex) else plain
    comparison = Comparison(
        f"Reading alone: {kind}, {len(index):,} images, data.shuffle={shuffle}",
        ("files", "workers", "in flight, each", "batch"),
        "MB/s",
        lambda passed: passed.num_bytes / 1e6 / passed.seconds,
        settings,
        run_rounds(settings, request, ReadPass),
        x="requests in flight of each worker",
        more={
            Column("files/s", "{:,.0f}"): lambda _, turns: median(each.num_files / each.seconds for each in turns),
            Column("certainly cold"): lambda _, turns: "yes" if all(each.is_cold for each in turns) else "no",
        },
    )
    best = [comparison.most(name for name, way in ways.items() if way.state == state) for state in options.state]
    note = "Workers read ahead as in training, and decode nothing. Files are certainly cold if the kernel confirms it."
    return [comparison.table(note, finding=" ".join(filter(None, best)))]


def read_warm(samples: Samples) -> Rows:
    """Read samples into memory, and remove them from `samples.rows`. Raises ConfigError if nothing keeps them;
    DataError if none can be read."""
    rows = samples.keepable(samples.rows)[: min(_WARM_FILES, len(samples.rows) // _WARM_SHARE)]
    if not len(rows):
        raise ConfigError(
            f"study=read: warm samples of {samples.index.place} (data.root) come from the local cache, which keeps "
            "none here; set data.cache_gb=null, or study.state=[cold]"
        )
    samples.rows = samples.rows[~np.isin(samples.rows, rows)]
    with announced(1) as announce:
        announce(f"reading {len(rows)} files into memory")
        samples.read_into_memory(rows, least=len(rows), seconds=0.0)
    return rows


def turn(samples: Samples, warm: Rows, way: Way, seconds: float) -> ReadPass:
    """Read more and more batches, until that takes about `seconds`. No file on storage is read twice in a measurement.
    Raises ConfigError for too few files, TurnFailed if none can be read."""
    is_cold, at_a_time, num = way.state == "cold", way.num_workers * way.batch_size, 2
    if is_cold and at_a_time > len(samples.rows):
        few = f"{way}: only {len(samples.rows)} files"
        raise ConfigError(f"study=read: {few}; set smaller study.batch_size=[N] or study.num_workers=[N]")
    while True:
        num = min(num, len(samples.rows) // at_a_time) if is_cold else num
        rows = samples.take(num * at_a_time)[: num * at_a_time] if is_cold else np.resize(warm, num * at_a_time)
        is_verified = is_cold and samples.evict(rows).verified
        passed = read(samples, rows, way)._replace(is_cold=is_verified)
        if passed.seconds >= _ENOUGH * seconds or (is_cold and num == len(samples.rows) // at_a_time):
            return passed
        num = 1 + math.ceil(num * seconds / passed.seconds)


class _Reads(Dataset[Any]):
    """Maps the number of a batch to its begin and end in seconds of the monotonic clock, its files and errors."""

    def __init__(self, reader: ReadAhead, batches: Indices, num_workers: int) -> None:
        self.reader, self.batches, self.num_workers = reader, batches, num_workers

    def __getitem__(self, step: int) -> tuple[float, float, list[int], list[str]]:
        """The files as sizes in bytes."""
        began = time.monotonic()
        later = range(step + self.num_workers, len(self.batches), self.num_workers)  # of the same worker
        following = (((0, number), self.batches[number]) for number in later)
        files = self.reader.read((0, step), self.batches[step], following=following).samples
        sizes = [len(file) for file in files if isinstance(file, bytes)]
        return began, time.monotonic(), sizes, [str(file) for file in files if not isinstance(file, bytes)]


def read(samples: Samples, rows: Rows, way: Way) -> ReadPass:
    """Read samples with the worker processes of a loader. Raises TurnFailed if no file can be read."""
    store, is_remote = samples.storage if way.state == "cold" else samples.store, isinstance(samples, RemoteSamples)
    reader = ReadAhead(store, reads_in_flight=way.depth, timeout_seconds=samples.loading.read_timeout)
    batches, context = rows.reshape(-1, way.batch_size), ServerContext() if is_remote else ForkedWorkers()
    loader: DataLoader[Any] = DataLoader(
        _Reads(reader, batches, way.num_workers),
        batch_size=None,
        sampler=range(len(batches)),
        num_workers=way.num_workers,
        multiprocessing_context=context,
        worker_init_fn=WorkerStart() if is_remote else ignore_group_signals,
    )
    with worker_errors():
        began, ended, files, errors = zip(*loader, strict=True)
    if not (sizes := [*itertools.chain(*files)]):
        raise TurnFailed(next(itertools.chain(*errors)))
    return ReadPass(max(ended) - min(began), len(sizes), sum(sizes), is_cold=False)
