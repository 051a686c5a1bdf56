"""What was read with which setting, as a table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from imagenet_opt.display.table import Cell, Column, Plot, Sheet, interval, series
from imagenet_opt.measure.stats.block_ratios import measured_ratios
from imagenet_opt.measure.stats.intervals import Estimate, median_interval, verdict
from imagenet_opt.measure.storage.parallel_reads import ReadPass

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
    """reads_in_flight: requests of each of `num_workers` processes at a time. batch_size: files."""

    state: State
    num_workers: int
    reads_in_flight: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.state}, workers {self.num_workers}, in flight {self.reads_in_flight}, batch {self.batch_size}"

    @property
    def num_at_a_time(self) -> int:
        """Files of a batch for each worker."""
        return self.num_workers * self.batch_size


def read_sheet(found: Mapping[Setting, Sequence[ReadPass]], title: str) -> Sheet:
    passes = [one for some in found.values() for one in some]
    mean = f", {sum(one.num_bytes for one in passes) / sum(one.num_files for one in passes) / 1e3:.0f} kB each"
    return Sheet(
        f"Reading alone: {title}{mean}",
        _COLUMNS,
        tuple(_row(setting, some) for setting, some in found.items()),
        tuple(_words(found)),
        (_plot(found),),
    )


def _row(setting: Setting, passes: Sequence[ReadPass]) -> tuple[Cell, ...]:
    rate = _megabytes(passes)
    taken = median_interval([one.seconds_per_batch for one in passes])
    return (
        setting.state,
        str(setting.num_workers),
        float(setting.reads_in_flight),
        float(setting.batch_size),
        rate.median,
        interval(rate, "{:,.1f}"),
        median_interval([one.files_per_second for one in passes]).median,
        taken.median,
        interval(taken, "{:.4f}"),
        None if setting.state == WARM else _VERIFIED if all(one.is_cold for one in passes) else _UNVERIFIED,
    )


def _megabytes(passes: Sequence[ReadPass]) -> Estimate:
    return median_interval([one.megabytes_per_second for one in passes])


def _words(found: Mapping[Setting, Sequence[ReadPass]]) -> Iterator[str]:
    """The best setting of each state beside the plainest, and what the numbers do not say."""
    for state in (COLD, WARM):
        if own := {setting: passes for setting, passes in found.items() if setting.state == state}:
            yield _best(own, num_comparisons=len(found))
    every = [one for passes in found.values() for one in passes]
    if num_unread := sum(one.num_unread for one in every):
        num = num_unread + sum(one.num_files for one in every)
        yield (
            f"{num_unread:,} of {num:,} files could not be read. That took time and brought nothing, "
            "so MB/s are less than the storage gives; imagenet-opt check names such files."
        )
    if not all(one.is_cold for setting, passes in found.items() if setting.state == COLD for one in passes):
        yield (
            "Unverified: the kernel does not confirm that the files had left its memory, as others read them, or they "
            "are not yours."
        )
    yield (
        "Each worker is a process with so many requests in flight that reads ahead as in training; nothing is decoded. "
        "Where any batch brings the same MB/s, bandwidth is the limit; where more in flight bring more, latency is. "
        "What a server keeps in its own memory cannot be emptied from here."
    )


def _best(found: Mapping[Setting, Sequence[ReadPass]], *, num_comparisons: int) -> str:
    """Any setting could have been the best, so all count as compared with the plainest."""
    plain, best = next(iter(found)), max(found, key=lambda setting: _megabytes(found[setting]).median)
    words = f"Most MB/s: {best}"
    if best != plain:
        rates = {str(setting): [one.megabytes_per_second for one in passes] for setting, passes in found.items()}
        ratio = measured_ratios(rates, [(str(best), str(plain))], num_comparisons=num_comparisons)[str(best)]
        words += f", {ratio.ratio:.2f} times as much as {plain} (geometric means over the rounds): {verdict(ratio)}"
    return f"{words}. As the best of {len(found)} it owes some of that to chance."


def _plot(found: Mapping[Setting, Sequence[ReadPass]]) -> Plot:
    """A curve over the requests in flight for each state and number of workers, with the largest batch."""
    batch = max(setting.batch_size for setting in found)
    curves: dict[str, dict[float, Estimate]] = {}
    for setting, passes in found.items():
        if setting.batch_size == batch:
            points = curves.setdefault(f"{setting.state}, workers {setting.num_workers}", {})
            points[setting.reads_in_flight] = _megabytes(passes)
    lines = tuple(series(name, points) for name, points in curves.items())
    return Plot(f"Reading, batch {batch}", "requests in flight of each worker", "MB/s", "lines", lines)
