"""Study `queue`: how long prefetched batches hide a loader that is too slow, compared with the theory."""

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from imagenet_opt.config.compose import composed
from imagenet_opt.data.loader import train_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.display.progress import announced
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table, interval, series
from imagenet_opt.measure.rehearsal.device_timeline import DeviceTimeline
from imagenet_opt.measure.stats.intervals import median_interval
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.kinds.queue_law import first_wait, hidden_steps, idle_share, mean_step_seconds, simulated_waits
from imagenet_opt.study.request import Request, checked_options
from imagenet_opt.study.turns import CachedTurns, run_rounds

WAITED = 0.2
"""A step has waited for its batch if that took more than this share of the time in which the loader makes one."""
_STEADY = 3
"""The last third of the steps shows what remains for ever."""
_SCATTERED_LOAD, _SCATTERED_STEPS, _DEPTHS = 0.8, 20_000, (1, 2, 4, 8, 16, 32)
"""Mean seconds a batch of the calculated example, where the device takes 1, and steps."""
_COLUMNS = (
    Column("prefetch"),
    Column("ready at first", "{:,.0f}"),
    Column("steps that do not wait", "{:,.0f}"),
    Column("simulated", "{:,.0f}"),
    Column("steps by the law", "{:,.0f}"),
    Column("seconds a step", "{:.3f}"),
    Column("interval"),
    Column("seconds by the law", "{:.3f}"),
    Column("steady, seconds a step", "{:.3f}"),
    Column("steady by the law", "{:.3f}"),
)


@dataclass(frozen=True)
class Drained:
    """One turn. num_ready: batches ready before the first step. waits: seconds that the device waited before each
    step. load_seconds: time of the loader per batch in the same turn."""

    num_ready: int
    waits: tuple[float, ...]
    load_seconds: float


@dataclass(frozen=True)
class Times:
    """Seconds per batch of the loader and of the device. decode_seconds: the part of the loader's time for decoding."""

    load_seconds: float
    compute_seconds: float
    decode_seconds: float

    @property
    def read_ahead(self) -> float:
        """Share of a batch, 0 to 1, that the worker has finished while the full queue made it wait."""
        return 1 - self.unfinished_seconds / self.load_seconds

    @property
    def unfinished_seconds(self) -> float:
        return min(self.decode_seconds, self.load_seconds)


def queue_table(
    turns_by_depth: Mapping[int, Sequence[Drained]], compute_seconds: float, decode_seconds: float
) -> Table:
    """Table of measured and predicted waits. found: turns with the same number of steps, by depth of the queue."""
    load = statistics.median(turn.load_seconds for turns in turns_by_depth.values() for turn in turns)
    times, compute = Times(load, compute_seconds, decode_seconds), compute_seconds
    num_steps = len(next(iter(turns_by_depth.values()))[0].waits)
    seconds = {
        float(depth): median_interval([_mean(turn, times) for turn in turns]) for depth, turns in turns_by_depth.items()
    }
    law = [
        mean_step_seconds(load, compute, _num_ready(turns) + times.read_ahead, num_steps)
        for turns in turns_by_depth.values()
    ]
    curves = (
        series("measured", seconds),
        Series("by the law", tuple(seconds), tuple(law)),
        Series("max(L, C), from then on", tuple(seconds), (max(load, compute),) * len(law)),
    )
    return Table(
        f"A loader of L = {load:.3f} s a batch and a simulated device of C = {compute:.3f} s, {num_steps} steps",
        _COLUMNS,
        tuple(_row(depth, turns, times) for depth, turns in turns_by_depth.items()),
        _words(times, num_steps),
        (Plot(f"The first {num_steps} steps", "data.prefetch_factor", "seconds a step", "lines", curves),),
    )


def _row(depth: int, turns: Sequence[Drained], times: Times) -> tuple[Cell, ...]:
    load, compute = times.load_seconds, times.compute_seconds
    num_ready, num_steps = _num_ready(turns), len(turns[0].waits)
    ready = num_ready + times.read_ahead
    loads, unfinished = [load] * num_steps, times.unfinished_seconds
    simulated = simulated_waits(loads, compute, num_ready + 1, unfinished_seconds=unfinished)
    hidden = [_hidden(turn.waits, load) for turn in turns]
    taken = median_interval([_mean(turn, times) for turn in turns])
    by_law = hidden_steps(load, compute, ready)
    last = num_steps // _STEADY
    steady = statistics.median(compute + wait for turn in turns for wait in turn.waits[-last:])
    return (
        str(depth),
        float(num_ready),
        float(statistics.median(hidden)),
        float(_hidden(simulated, load)),
        math.floor(by_law) + 1.0 if math.isfinite(by_law) else None,
        taken.median,
        interval(taken, "{:.3f}"),
        mean_step_seconds(load, compute, ready, num_steps),
        steady if max(hidden) <= num_steps - last else None,
        max(load, compute),
    )


def _num_ready(turns: Sequence[Drained]) -> int:
    return round(statistics.median(turn.num_ready for turn in turns))


def _hidden(waits: Sequence[float], load_seconds: float) -> int:
    first = first_wait(waits, WAITED * load_seconds)
    return len(waits) if first is None else first


def _mean(turn: Drained, times: Times) -> float:
    return times.compute_seconds + statistics.fmean(turn.waits)


def _words(times: Times, num_steps: int) -> tuple[str, ...]:
    return (
        "The device is simulated: its steps end at absolute deadlines, and its host sleeps. The loader is the real "
        f"one, with one worker; it takes {times.load_seconds / times.compute_seconds:.2f} times as long as the device.",
        "Theory: with Q batches ready, steps 0 to (Q - 1) / (1 - C/L) do not wait (C: seconds to compute a batch, L: "
        f"to load one). Waits of less than {WAITED:.0%} of L do not count. With a full queue the worker has read one "
        f"more batch, which needs {times.unfinished_seconds:.3f} s of decoding and counts as {times.read_ahead:.2f} "
        "batches.",
        "A queue does not cure a slow loader, it postpones: once it is drained each step takes max(L, C), however deep "
        f"it was. A mean over {num_steps} steps flatters a deep queue; over an epoch nothing is left of that.",
        "It does help a loader that is quick enough on average and late now and then: the second table.",
    )


def scattered_table() -> Table:
    """Table of what a queue gains if load times vary, by simulation only."""
    load = np.random.default_rng(0).exponential(_SCATTERED_LOAD, _SCATTERED_STEPS).tolist()
    idle = [100 * idle_share(simulated_waits(load, 1.0, depth), 1.0) for depth in _DEPTHS]
    curve = Series("idle", _DEPTHS, tuple(idle))
    return Table(
        f"Calculated, not measured: a loader whose times scatter, on average {_SCATTERED_LOAD} of the device's",
        (Column("batches ready", "{:,.0f}"), Column("device idle, %", "{:.1f}")),
        tuple((float(depth), share) for depth, share in zip(_DEPTHS, idle, strict=True)),
        (
            f"The times of {_SCATTERED_STEPS:,} batches are drawn from an exponential distribution. Here a deeper "
            "queue is a cure: the loader catches up again after each late batch.",
        ),
        (Plot("A loader that scatters", "batches ready", "device idle, %", "lines", (curve,)),),
    )


_STARTING, _TIMED = 3, 5
"""Batches that are discarded, and those that then tell how long the loader takes for one."""
_LOOK_SECONDS, _STILL_SECONDS, _STILL = 0.01, 0.1, 3
"""A queue is full once nothing has come for three times as long as the loader takes for a batch."""
_HELD = 4
"""Batches that the process which trains holds at most, beside prefetch_factor."""


class Options(BaseModel):
    """prefetch_factors: depths of the queue. num_steps: of each turn. load_over_compute: by which factor the loader
    is slower than the device. load_seconds: target time per batch, reached by slowing down the storage; None to
    leave the storage as it is.
    """

    model_config = ConfigDict(extra="forbid")
    prefetch_factors: tuple[PositiveInt, ...] = Field(min_length=1)
    num_steps: int = Field(ge=6, le=10_000)
    load_over_compute: float = Field(gt=1)
    load_seconds: float | None = Field(gt=0)


def run(request: Request) -> list[Table]:
    """Measure and return the tables. Raises ImagenetOptError."""
    options = checked_options(Options, request)
    testbed = Testbed(composed(request.overrides))
    num_requests = len(testbed.samples.store.groups(testbed.samples.rows[: testbed.loading.batch_size]))
    loading = slowed(testbed.loading, options.load_seconds, num_requests)
    with announced(1) as announce:
        announce("the loader alone")
        kept = CachedTurns(request, tuple[float, float])  # the turns hold only beside what it gave
        load_seconds, decode_seconds = kept.take("the loader alone", partial(alone, testbed, loading))
    compute_seconds = load_seconds / options.load_over_compute
    turns = {
        str(depth): partial(
            drain, testbed, replace(loading, prefetch_factor=depth), load_seconds, compute_seconds, options.num_steps
        )
        for depth in options.prefetch_factors
    }
    rounds = run_rounds(turns, request, Drained, label="data.prefetch_factor={}")
    turns_by_depth = {int(depth): drained for depth, drained in rounds.results.items() if depth not in rounds.failures}
    table = queue_table(turns_by_depth, compute_seconds, decode_seconds)
    return [replace(table, notes=(*rounds.reasons, *table.notes)), scattered_table()]


def slowed(loading: LoaderOptions, load_seconds: float | None, num_requests: int) -> LoaderOptions:
    """A loader with one worker and one request in flight; each of the `num_requests` of a batch has added latency.
    The worker reads one batch ahead: see ReadAhead."""
    options = replace(loading, samples_per_epoch=None, num_workers=1, reads_in_flight=1)
    return options if load_seconds is None else replace(options, added_latency_ms=1000 * load_seconds / num_requests)


def alone(testbed: Testbed, loading: LoaderOptions) -> tuple[float, float]:
    """Seconds per batch of a loader whose batches are taken at once, and of its worker for decoding one."""
    with _batches(testbed, replace(loading, prefetch_factor=1), _STARTING + 1) as (loader, batches):
        for _ in range(_STARTING):
            next(batches)
        return _seconds_each(batches), loader.pop_metrics()["loader/decode_seconds"]


def drain(
    testbed: Testbed, loading: LoaderOptions, load_seconds: float, compute_seconds: float, num_steps: int
) -> Drained:
    """Fill the queue, let a simulated device take its batches, and then take some at once. load_seconds: time per
    batch of the loader alone."""
    timeline = DeviceTimeline()
    with _batches(testbed, loading, 1 + num_steps + int(loading.prefetch_factor)) as (loader, batches):
        next(batches)  # starts the worker
        num_ready = _filled(loader, _STILL * max(_STILL_SECONDS, load_seconds))
        for _ in range(num_steps):
            next(batches)
            timeline.submit(compute_seconds)
            timeline.synchronize()  # the law's device takes a batch when it can begin with it
        for _ in range(loader.num_ready + 1):
            next(batches)
        seconds = _seconds_each(batches)
    return Drained(num_ready, tuple(step.idle_seconds for step in timeline.steps), seconds)


@contextmanager
def _batches(testbed: Testbed, loading: LoaderOptions, num: int) -> Iterator[tuple[DevicePrefetcher, Iterator[object]]]:
    """A loader and its batches: `num` measured batches, those that wait in the queue, and those timed afterwards."""
    num_batches = num + _HELD + _TIMED
    loader = train_loader(
        testbed.samples.listed(testbed.samples.rows, num_batches * loading.batch_size), loading, testbed.rank_info
    )
    loader.finish = lambda batch: batch  # type: ignore[assignment,return-value]
    batches = iter(loader)
    try:
        yield loader, batches
    finally:
        batches.close()  # type: ignore[attr-defined]
        loader.close()


def _seconds_each(batches: Iterator[object]) -> float:
    """Seconds per batch for batches that are taken at once."""
    began = time.perf_counter()
    for _ in range(_TIMED):
        next(batches)
    return (time.perf_counter() - began) / _TIMED


def _filled(loader: DevicePrefetcher, patience_seconds: float) -> int:
    """Wait until no further batch arrives; return how many are ready."""
    num_ready, since = 0, time.monotonic()
    while time.monotonic() - since < patience_seconds:
        if loader.num_ready != num_ready:
            num_ready, since = loader.num_ready, time.monotonic()
        time.sleep(_LOOK_SECONDS)
    return num_ready
