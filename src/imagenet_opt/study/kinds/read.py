"""Study `read`: reading alone, by workers, batch size and requests in flight, from memory and from storage."""

import itertools
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field, PositiveInt

from imagenet_opt.config.compose import composed
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.order import block_size_for
from imagenet_opt.display.progress import announced
from imagenet_opt.display.table import Cell, Column, Plot, Table
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.paired_ratios import measured_ratios, verdict
from imagenet_opt.measure.storage.parallel_reads import ReadPass, checked, read_shares
from imagenet_opt.probe.remote_samples import RemoteSamples
from imagenet_opt.probe.samples import Rows, Samples, in_blocks
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.processes import ServerContext
from imagenet_opt.study.kinds.ratio_table import median_cells, median_series
from imagenet_opt.study.kinds.read_batches import read_batches
from imagenet_opt.study.request import Request, checked_options
from imagenet_opt.study.turns import run_rounds

State = Literal["cold", "warm"]
COLD, WARM = "cold", "warm"
_VERIFIED, _UNVERIFIED = "verified", "unverified"
_COLUMNS = (
    Column("files"),
    Column("workers"),
    Column("in flight, each", "{:,.0f}"),
    Column("batch", "{:,.0f}"),
    Column("MB/s", "{:,.1f}"),
    Column("interval of MB/s"),
    Column("files/s", "{:,.0f}"),
    Column("seconds a batch", "{:.4f}"),
    Column("interval of seconds"),
    Column("really cold"),
)


@dataclass(frozen=True)
class Setting:
    """reads_in_flight: simultaneous requests of each of `num_workers` processes. batch_size: in files."""

    state: State
    num_workers: int
    reads_in_flight: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.state}, workers {self.num_workers}, in flight {self.reads_in_flight}, batch {self.batch_size}"

    @property
    def num_at_a_time(self) -> int:
        """Number of files of one batch per worker."""
        return self.num_workers * self.batch_size


def read_table(passes_of: Mapping[Setting, Sequence[ReadPass]], title: str) -> Table:
    passes = [p for passes in passes_of.values() for p in passes]
    mean_bytes = sum(p.num_bytes for p in passes) / sum(p.num_files for p in passes)
    finding, *notes = _notes(passes_of)
    return Table(
        f"Reading alone: {title}, {mean_bytes / 1e3:.0f} kB each",
        _COLUMNS,
        tuple(_row(setting, passes) for setting, passes in passes_of.items()),
        tuple(notes),
        (_plot(passes_of),),
        finding=finding,
    )


def _row(setting: Setting, passes: Sequence[ReadPass]) -> tuple[Cell, ...]:
    cold = _VERIFIED if all(p.is_cold for p in passes) else _UNVERIFIED
    return (
        setting.state,
        str(setting.num_workers),
        float(setting.reads_in_flight),
        float(setting.batch_size),
        *median_cells(_megabytes(passes), "{:,.1f}"),
        median(p.files_per_second for p in passes),
        *median_cells([p.seconds_per_batch for p in passes], "{:.4f}"),
        cold if setting.state == COLD else None,
    )


def _megabytes(passes: Sequence[ReadPass]) -> list[float]:
    return [p.megabytes_per_second for p in passes]


def _notes(passes_of: Mapping[Setting, Sequence[ReadPass]]) -> Iterator[str]:
    """Sentences that compare the best setting with the simplest one, and explain the numbers."""
    for state in (COLD, WARM):
        if of_state := {setting: passes for setting, passes in passes_of.items() if setting.state == state}:
            yield _best(of_state, num_comparisons=len(passes_of))
    all_passes = [p for passes in passes_of.values() for p in passes]
    if num_unread := sum(p.num_unread for p in all_passes):
        num = num_unread + sum(p.num_files for p in all_passes)
        yield (
            f"{num_unread:,} of {num:,} files could not be read. The attempts took time, so the MB/s are lower than "
            "those of the storage; `imagenet-opt check` names the unreadable files."
        )
    if not all(p.is_cold for setting, passes in passes_of.items() if setting.state == COLD for p in passes):
        yield (
            "Unverified: the kernel does not confirm that the files had left its memory, because other programs read "
            "the files or another user owns them."
        )
    yield (
        "Each worker is a process that reads ahead as in training, with this many requests in flight; nothing is "
        "decoded. If all batch sizes give the same MB/s, bandwidth is the limit; if more requests in flight give more "
        "MB/s, latency is the limit. The cache of a storage server cannot be emptied from here."
    )


def _best(passes_of: Mapping[Setting, Sequence[ReadPass]], *, num_comparisons: int) -> str:
    """The best setting and its ratio. Any setting could have been best, so all count as comparisons."""
    rates = {str(setting): _megabytes(passes) for setting, passes in passes_of.items()}
    simplest, best = next(iter(rates)), max(rates, key=lambda setting: median(rates[setting]))
    note = f"Most MB/s: {best}"
    if best != simplest:
        ratio = measured_ratios(rates, [(best, simplest)], num_comparisons=num_comparisons)[best]
        note += f", {ratio.ratio:.2f} times as much as {simplest} (over the rounds): {verdict(ratio)}"
    return f"{note}. It is the best of {len(passes_of)} settings, in part by chance."


def _plot(passes_of: Mapping[Setting, Sequence[ReadPass]]) -> Plot:
    """MB/s by requests in flight, at the largest batch size: a curve for each cache state and number of workers."""
    batch = max(setting.batch_size for setting in passes_of)
    curves: dict[str, dict[float, list[float]]] = {}
    for setting, passes in passes_of.items():
        if setting.batch_size == batch:
            points = curves.setdefault(f"{setting.state}, workers {setting.num_workers}", {})
            points[setting.reads_in_flight] = _megabytes(passes)
    lines = tuple(median_series(name, points) for name, points in curves.items())
    return Plot(f"Reading, batch {batch}", "requests in flight of each worker", "MB/s", "lines", lines)


_WARM_SHARE, _WARM_FILES = 4, 4096
"""A quarter of the files is kept in memory, at most 4096 files or one batch for each worker: far more than a CPU's
caches hold. The other files are read from storage."""
_TRIAL = 0.25
"""Part of the time for a trial of several batches; the first batch is slower than later batches."""
_SHORT = 0.8
"""A turn that lasts less than this part of the requested time gets a note."""


class Options(BaseModel, extra="forbid"):
    """num_workers: numbers of processes. reads_in_flight: requests of each process. batch_size: in files."""

    num_workers: tuple[PositiveInt, ...] = Field(min_length=1)
    reads_in_flight: tuple[PositiveInt, ...] = Field(min_length=1)
    batch_size: tuple[PositiveInt, ...] = Field(min_length=1)
    state: tuple[State, ...] = Field(min_length=1)


class Files:
    """The files to read: a part in memory after `bring`, the rest on storage. settings: all settings of the study."""

    def __init__(self, samples: Samples, settings: Sequence[Setting]) -> None:
        self.samples = samples
        most = max((max(_WARM_FILES, warm.num_at_a_time) for warm in settings if warm.state == WARM), default=0)
        self._warm = samples.keepable(samples.rows)[: min(most, len(samples.rows) // _WARM_SHARE)]
        samples.rows = samples.rows[~np.isin(samples.rows, self._warm)]

    @property
    def num_warm(self) -> int:
        return len(self._warm)

    def bring(self) -> None:
        """Read files into memory. Raises DataError if none can be read."""
        if self.num_warm:
            with announced(1) as announce:
                announce(f"reading {self.num_warm} files into memory")
                self.samples.read_into_memory(self._warm, least=self.num_warm, seconds=0.0)

    def most(self, setting: Setting) -> int:
        """Largest number of batches per worker in a turn; each file on storage is read at most once per turn."""
        return 1_000_000 if setting.state == WARM else len(self.samples.rows) // setting.num_at_a_time

    def rows(self, setting: Setting, num: int) -> tuple[Rows, bool]:
        """Samples for a turn, in memory or on storage, preferably other samples than in the last turn; and whether the
        kernel confirms that the samples are not in memory."""
        if setting.state == WARM:
            return np.resize(self._warm, num), False
        rows = self.samples.take(num)[:num]
        return rows, self.samples.evict(rows).verified


def run(request: Request) -> list[Table]:
    """Measure and return the tables. Raises ImagenetOptError."""
    options = checked_options(Options, request)
    testbed = Testbed(composed(request.overrides))
    samples = testbed.samples
    grid = itertools.product(options.state, options.num_workers, options.reads_in_flight, options.batch_size)
    settings = [Setting(*values) for values in grid]
    if testbed.loading.shuffle == "block":
        samples.rows = in_blocks(len(samples.index), block_size_for(min(options.batch_size)))
    files = Files(samples, settings)
    for setting in settings:
        if setting.state == WARM and not files.num_warm:
            raise ConfigError(
                f"study={request.name}: warm samples of {samples.index.place} (data.root) come from the local "
                "cache, which keeps none here; set data.cache_gb=null, or study.state=[cold]"
            )
        if not files.most(setting):
            remedy = "set smaller study.batch_size=[N] or study.num_workers=[N]"
            raise ConfigError(f"study={request.name}: {setting}: only {len(samples.rows)} files; {remedy}")
    files.bring()
    turns = {str(setting): partial(turn, files, setting, request.seconds) for setting in settings}
    rounds = run_rounds(turns, request, ReadPass)
    passes_of = {setting: rounds.results[str(setting)] for setting in settings if str(setting) not in rounds.failures}
    index = samples.index
    plain = "one object each," if isinstance(samples, RemoteSamples) else "a folder,"
    kind = f"packed (shards: {len(index.shards)})," if isinstance(index, ShardIndex) else plain
    table = read_table(passes_of, f"{kind} {len(index):,} images, data.shuffle={testbed.loading.shuffle}")
    return [replace(table, notes=(*rounds.reasons, *used_up(files, passes_of, request.seconds), *table.notes))]


def used_up(files: Files, passes_of: Mapping[Setting, Sequence[ReadPass]], seconds: float) -> Iterator[str]:
    """A note if turns read all files on storage long before their time was over."""
    cold = [
        (p.seconds, p.num_batches == files.most(setting) * setting.num_workers)
        for setting, passes in passes_of.items()
        for p in passes
        if setting.state == COLD
    ]
    if short := [duration for duration, all_read in cold if all_read and duration < _SHORT * seconds]:
        yield (
            f"All {len(files.samples.rows):,} files on storage were read before the end of {len(short)} of {len(cold)} "
            f"cold turns, the shortest after {min(short):.2g} s of {seconds:g} s, because a turn reads each file once. "
            "A larger data set gives longer turns, --repeats gives more turns."
        )


def turn(files: Files, setting: Setting, seconds: float) -> ReadPass:
    """Measure one setting. Two trials, with one and with several batches per worker, show how many batches take
    `seconds`; only the third measurement counts."""
    first, most = read(files, setting, 1), files.most(setting)
    if first.seconds >= seconds or most == 1:
        return first
    num_tried = min(max(2, int(_TRIAL * seconds / first.seconds)), most)
    trial = read(files, setting, num_tried)
    later_seconds = max((trial.seconds - first.seconds) / (num_tried - 1), trial.seconds / num_tried / 2)
    num_each = min(1 + int((seconds - first.seconds) / later_seconds), most)
    return trial if num_each <= num_tried else read(files, setting, num_each)


def read(files: Files, setting: Setting, num_each: int) -> ReadPass:
    """Read this many batches in each process; the processes take turns like a loader's workers."""
    rows, is_cold = files.rows(setting, num_each * setting.num_at_a_time)
    batches = rows.reshape(-1, setting.batch_size)
    samples, num = files.samples, setting.num_workers
    share = partial(
        read_batches,
        samples.storage if setting.state == COLD else samples.store,
        reads_in_flight=setting.reads_in_flight,
        timeout_seconds=samples.loading.read_timeout,
    )
    context = ServerContext() if isinstance(samples, RemoteSamples) else multiprocessing.get_context("fork")
    read_pass = read_shares([partial(share, batches[worker::num]) for worker in range(num)], context)
    return replace(checked(read_pass), is_cold=is_cold)
