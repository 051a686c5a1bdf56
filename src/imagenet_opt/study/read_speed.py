"""Study `read`: reading alone from storage, by workers, batch size and requests in flight."""

import itertools
import math
import time
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset

from imagenet_opt.config.compose import composed
from imagenet_opt.data.loader_workers import worker_errors, worker_options
from imagenet_opt.data.order import block_size_for
from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.display.table import Column, Table
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.remote_samples import RemoteSamples
from imagenet_opt.probe.samples import Rows, Samples, in_blocks
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.comparison import ComparedSetting, Comparison, run_rounds
from imagenet_opt.study.file import ReadFile, Request

_ENOUGH = 0.8
"""A turn that lasts less than this part of the requested time is repeated with more files."""


class Way(NamedTuple):
    """How files are read. depth: simultaneous requests of each of `num_workers` processes."""

    num_workers: int
    depth: int
    batch_size: int

    def __str__(self) -> str:
        return f"workers {self.num_workers}, in flight {self.depth}, batch {self.batch_size}"


class ReadPass(NamedTuple):
    """Totals of all processes, from the first request to the last answer. is_cold: whether the kernel confirms that no
    file was in memory."""

    seconds: float
    num_files: int
    num_bytes: int
    is_cold: bool


def run(file: ReadFile, request: Request) -> Table:
    """Measure each combination. Raises ImagenetOptError."""
    testbed = Testbed(composed(request.overrides))
    samples, shuffle = testbed.samples, testbed.loading.shuffle
    if shuffle == "block":
        samples.rows = in_blocks(len(samples.index), block_size_for(min(file.batch_size)))
    ways = list(itertools.starmap(Way, itertools.product(file.num_workers, file.reads_in_flight, file.batch_size)))
    settings = {
        str(way): ComparedSetting(
            tuple(map(str, way)),
            partial(turn, samples, way, request.seconds),
            against=None if way == ways[0] else str(ways[0]),
        )
        for way in ways
    }
    comparison = Comparison(
        f"Reading alone: {len(samples.index):,} images, data.shuffle={shuffle}",
        ("workers", "in flight, each", "batch"),
        "MB/s",
        settings,
        run_rounds(settings, request, ReadPass),
        lambda passed: passed.num_bytes / 1e6 / passed.seconds,
        more={
            Column("files/s", "{:,.0f}"): lambda turns: median(each.num_files / each.seconds for each in turns),
            Column("certainly cold"): lambda turns: "yes" if all(each.is_cold for each in turns) else "no",
        },
    )
    note = "Workers read ahead as in training, and decode nothing. Files are certainly cold if the kernel confirms it."
    return comparison.table(note)


def turn(samples: Samples, way: Way, seconds: float) -> ReadPass:
    """Read more and more batches, until that takes about `seconds`. No file is read twice in a measurement. Raises
    ConfigError for too few files, TurnFailed if none can be read."""
    at_a_time = way.num_workers * way.batch_size
    num, most = 2, len(samples.rows) // at_a_time
    if not most:
        few = f"only {len(samples.rows)} files"
        raise ConfigError(f"{few}; set smaller study.batch_size=[N] or study.num_workers=[N]")
    while True:
        num = min(num, most)
        rows = samples.take(num * at_a_time)[: num * at_a_time]
        is_cold = samples.evict(rows).verified
        passed = read(samples, rows, way)._replace(is_cold=is_cold)
        if passed.seconds >= _ENOUGH * seconds or num == most:
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
    reader = ReadAhead(samples.storage, reads_in_flight=way.depth, timeout_seconds=samples.loading.read_timeout)
    batches, is_remote = rows.reshape(-1, way.batch_size), isinstance(samples, RemoteSamples)
    loader: DataLoader[Any] = DataLoader(
        _Reads(reader, batches, way.num_workers),
        batch_size=None,
        sampler=range(len(batches)),
        num_workers=way.num_workers,
        **worker_options(is_remote=is_remote),
    )
    with worker_errors():
        began, ended, files, errors = zip(*loader, strict=True)
    if not (sizes := [*itertools.chain(*files)]):
        raise TurnFailed(next(itertools.chain(*errors)))
    return ReadPass(max(ended) - min(began), len(sizes), sum(sizes), is_cold=False)
