"""Study `read`: reading alone, by workers, batch size and requests in flight, from memory and from storage."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from imagenet_opt.config.compose import composed
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.order import block_size_for
from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.display.progress import announced
from imagenet_opt.display.table import Cell, Column, Plot, Table, interval, series
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.block_ratios import measured_ratios, verdict
from imagenet_opt.measure.stats.intervals import Estimate, median_interval
from imagenet_opt.measure.storage.parallel_reads import BatchRead, ReadPass, checked, read_shares, timed
from imagenet_opt.probe.samples import Rows, Samples
from imagenet_opt.probe.testbed import Testbed
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
    passes = [p for some in passes_of.values() for p in some]
    mean_bytes = sum(p.num_bytes for p in passes) / sum(p.num_files for p in passes)
    return Table(
        f"Reading alone: {title}, {mean_bytes / 1e3:.0f} kB each",
        _COLUMNS,
        tuple(_row(setting, some) for setting, some in passes_of.items()),
        tuple(_words(passes_of)),
        (_plot(passes_of),),
    )


def _row(setting: Setting, passes: Sequence[ReadPass]) -> tuple[Cell, ...]:
    rate = _megabytes(passes)
    duration = median_interval([p.seconds_per_batch for p in passes])
    return (
        setting.state,
        str(setting.num_workers),
        float(setting.reads_in_flight),
        float(setting.batch_size),
        rate.median,
        interval(rate, "{:,.1f}"),
        median_interval([p.files_per_second for p in passes]).median,
        duration.median,
        interval(duration, "{:.4f}"),
        None if setting.state == WARM else _VERIFIED if all(p.is_cold for p in passes) else _UNVERIFIED,
    )


def _megabytes(passes: Sequence[ReadPass]) -> Estimate:
    return median_interval([p.megabytes_per_second for p in passes])


def _words(passes_of: Mapping[Setting, Sequence[ReadPass]]) -> Iterator[str]:
    """Sentences that compare the best setting with the simplest one, and explain the numbers."""
    for state in (COLD, WARM):
        if own := {setting: passes for setting, passes in passes_of.items() if setting.state == state}:
            yield _best(own, num_comparisons=len(passes_of))
    every = [p for passes in passes_of.values() for p in passes]
    if num_unread := sum(p.num_unread for p in every):
        num = num_unread + sum(p.num_files for p in every)
        yield (
            f"{num_unread:,} of {num:,} files could not be read. That took time and brought nothing, "
            "so MB/s are less than the storage gives; imagenet-opt check names such files."
        )
    if not all(p.is_cold for setting, passes in passes_of.items() if setting.state == COLD for p in passes):
        yield (
            "Unverified: the kernel does not confirm that the files had left its memory, as others read them, or they "
            "are not yours."
        )
    yield (
        "Each worker is a process with so many requests in flight that reads ahead as in training; nothing is decoded. "
        "Where any batch brings the same MB/s, bandwidth is the limit; where more in flight bring more, latency is. "
        "What a server keeps in its own memory cannot be emptied from here."
    )


def _best(passes_of: Mapping[Setting, Sequence[ReadPass]], *, num_comparisons: int) -> str:
    """The best setting and its ratio. Any setting could have been best, so all count as comparisons."""
    plain, best = next(iter(passes_of)), max(passes_of, key=lambda setting: _megabytes(passes_of[setting]).median)
    words = f"Most MB/s: {best}"
    if best != plain:
        rates = {str(setting): [p.megabytes_per_second for p in passes] for setting, passes in passes_of.items()}
        ratio = measured_ratios(rates, [(str(best), str(plain))], num_comparisons=num_comparisons)[str(best)]
        words += f", {ratio.ratio:.2f} times as much as {plain} (geometric means over the rounds): {verdict(ratio)}"
    return f"{words}. As the best of {len(passes_of)} it owes some of that to chance."


def _plot(passes_of: Mapping[Setting, Sequence[ReadPass]]) -> Plot:
    """MB/s by requests in flight, at the largest batch size: a curve for each cache state and number of workers."""
    batch = max(setting.batch_size for setting in passes_of)
    curves: dict[str, dict[float, Estimate]] = {}
    for setting, passes in passes_of.items():
        if setting.batch_size == batch:
            points = curves.setdefault(f"{setting.state}, workers {setting.num_workers}", {})
            points[setting.reads_in_flight] = _megabytes(passes)
    lines = tuple(series(name, points) for name, points in curves.items())
    return Plot(f"Reading, batch {batch}", "requests in flight of each worker", "MB/s", "lines", lines)


_WARM_SHARE, _WARM_FILES = 4, 4096
"""A quarter of the files is kept in memory, so many at most unless a batch for each worker takes more: far more than a
CPU's caches hold. The others are those on storage."""
_TRIAL = 0.25
"""Part of the time that is read on trial: a first batch alone is slower than the later ones."""
_SHORT = 0.8
"""A turn of less than that part of the time is not what was asked for."""


class Options(BaseModel):
    """num_workers: numbers of processes. reads_in_flight: requests of each process. batch_size: in files."""

    model_config = ConfigDict(extra="forbid")
    num_workers: tuple[PositiveInt, ...] = Field(min_length=1)
    reads_in_flight: tuple[PositiveInt, ...] = Field(min_length=1)
    batch_size: tuple[PositiveInt, ...] = Field(min_length=1)
    state: tuple[State, ...] = Field(min_length=1)

    @property
    def settings(self) -> list[Setting]:
        grid = itertools.product(self.state, self.num_workers, self.reads_in_flight, self.batch_size)
        return [Setting(*values) for values in grid]


class Files:
    """The files to read: some in memory after `bring`, the others on storage. settings: all settings of the study."""

    def __init__(self, samples: Samples, settings: Sequence[Setting]) -> None:
        self.samples = samples
        most = max([max(_WARM_FILES, one.num_at_a_time) for one in settings if one.state == WARM], default=0)
        self._warm, samples.rows = np.split(samples.rows, [min(most, len(samples.rows) // _WARM_SHARE)])

    def bring(self) -> None:
        """Read files into memory. Raises DataError if none can be read."""
        if num_warm := len(self._warm):
            with announced(1) as announce:
                announce(f"reading {num_warm} files into memory")
                self.samples.read_into_memory(self._warm, least=num_warm, seconds=0.0)

    def most(self, setting: Setting) -> int:
        """Largest number of batches per worker in a turn; each file on storage is read at most once per turn."""
        return 1_000_000 if setting.state == WARM else len(self.samples.rows) // setting.num_at_a_time

    def rows(self, setting: Setting, num: int) -> tuple[Rows, bool]:
        """Samples for a turn, in memory or on storage, preferably not those of the last turn; and whether the kernel
        confirms that they are not in memory."""
        if setting.state == WARM:
            return np.resize(self._warm, num), False
        rows = self.samples.take(num)
        return rows, self.samples.evict(rows).verified


def run(request: Request) -> list[Table]:
    """Measure and return the tables. Raises ImagenetOptError."""
    options = checked_options(Options, request)
    testbed = Testbed(composed(request.overrides))
    samples, settings = testbed.samples, options.settings
    if testbed.loading.shuffle == "block":
        samples.rows = in_blocks(len(samples.index), block_size_for(min(options.batch_size)))
    files = Files(samples, settings)
    for setting in settings:
        if not files.most(setting):
            few = f"only {len(samples.rows)} files; set study.batch_size=[N] or study.num_workers=[N] with less"
            raise ConfigError(f"study={request.name}: {setting}: {few}")
    files.bring()
    turns = {str(setting): partial(turn, files, setting, request.seconds) for setting in settings}
    rounds = run_rounds(turns, request, ReadPass)
    passes_of = {setting: rounds.results[str(setting)] for setting in settings if str(setting) not in rounds.failures}
    table = read_table(passes_of, _title(testbed))
    return [replace(table, notes=(*rounds.reasons, *used_up(files, passes_of, request.seconds), *table.notes))]


def _title(testbed: Testbed) -> str:
    index = testbed.samples.index
    kind = f"packed (shards: {len(index.shards)})," if isinstance(index, ShardIndex) else "a folder,"
    return f"{kind} {len(index):,} images, data.shuffle={testbed.loading.shuffle}"


def used_up(files: Files, passes_of: Mapping[Setting, Sequence[ReadPass]], seconds: float) -> Iterator[str]:
    """A sentence if turns have read all files on storage long before their time was over."""
    cold = [
        (p.seconds, p.num_batches == files.most(setting) * setting.num_workers)
        for setting, passes in passes_of.items()
        for p in passes
        if setting.state == COLD
    ]
    if short := [duration for duration, all_read in cold if all_read and duration < _SHORT * seconds]:
        yield (
            f"{len(files.samples.rows):,} files on storage were used up before the time in {len(short)} of {len(cold)} "
            f"cold turns, the shortest after {min(short):.2g} s of {seconds:g} s: none is timed twice in a turn. "
            "A larger data set makes such turns longer, --repeats makes more of them."
        )


def in_blocks(num: int, block_size: int) -> Rows:
    """Samples in a random order of blocks of neighbours, as with data.shuffle=block."""
    blocks = np.random.default_rng().permutation(num // block_size)
    return (block_size * blocks[:, None] + np.arange(block_size)).ravel()


def turn(files: Files, setting: Setting, seconds: float) -> ReadPass:
    """Measure one setting. Two trials, of one batch per worker and of more, tell how many batches take `seconds`;
    only the third measurement counts."""
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
    read_pass = read_shares(
        [
            partial(_share, files.samples, setting.reads_in_flight, batches[worker :: setting.num_workers])
            for worker in range(setting.num_workers)
        ]
    )
    return replace(checked(read_pass), is_cold=is_cold)


def _share(samples: Samples, reads_in_flight: int, batches: Rows) -> list[BatchRead]:
    """Runs in a process of its own: reads the batches of one worker and requests further batches ahead; decodes
    nothing."""
    reader = ReadAhead(samples.store, reads_in_flight=reads_in_flight, timeout_seconds=samples.loading.read_timeout)
    places = [((0, step), batch) for step, batch in enumerate(batches)]

    def batch(step: int) -> list[bytes | Exception]:
        following = map(places.__getitem__, range(step + 1, len(places)))
        return [*reader.read(*places[step], following=following).samples]

    return [timed(partial(batch, step)) for step in range(len(places))]
