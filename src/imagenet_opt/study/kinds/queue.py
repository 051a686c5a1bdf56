"""Study `queue`: how long prefetched batches hide a loader that is too slow, compared with the theory."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

import numpy as np
from pydantic import BaseModel, Field, PositiveInt

from imagenet_opt.config.compose import composed
from imagenet_opt.data.loader import train_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.display.progress import announced
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table
from imagenet_opt.measure.rehearsal.device_timeline import DeviceTimeline
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.kinds.queue_law import first_wait, hidden_steps, idle_share, mean_step_seconds, simulated_waits
from imagenet_opt.study.kinds.ratio_table import median_cells, median_series
from imagenet_opt.study.request import Request, checked_options
from imagenet_opt.study.turns import cache_of, run_rounds

WAITED = 0.2
"""A step waits for its batch if the wait exceeds this share of the loader's time per batch."""
_STEADY = 3
"""The last third of the steps shows the steady state."""
_SCATTERED_LOAD, _SCATTERED_STEPS, _DEPTHS = 0.8, 20_000, (1, 2, 4, 8, 16, 32)
"""The calculated example: mean seconds of the loader per batch (the device takes 1), steps, and depths of the queue."""
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
    """Seconds per batch of the loader and of the device. decode_seconds: part of load_seconds."""

    load_seconds: float
    compute_seconds: float
    decode_seconds: float

    @property
    def read_ahead(self) -> float:
        """Share of the next batch, 0 to 1, that the worker finishes while the queue is full."""
        return 1 - self.unfinished_seconds / self.load_seconds

    @property
    def unfinished_seconds(self) -> float:
        return min(self.decode_seconds, self.load_seconds)


def queue_table(
    turns_by_depth: Mapping[int, Sequence[Drained]], compute_seconds: float, decode_seconds: float
) -> Table:
    """Table of measured and predicted waits. turns_by_depth: turns with the same number of steps, by depth of the
    queue."""
    load = median(turn.load_seconds for turns in turns_by_depth.values() for turn in turns)
    times, compute = Times(load, compute_seconds, decode_seconds), compute_seconds
    num_steps = len(next(iter(turns_by_depth.values()))[0].waits)
    rows = tuple(_row(depth, turns, times) for depth, turns in turns_by_depth.items())
    means = {float(depth): [_mean(turn, times) for turn in turns] for depth, turns in turns_by_depth.items()}
    curves = (
        median_series("measured", means),
        Series("by the law", tuple(means), tuple(float(row[7] or 0) for row in rows)),
        Series("max(L, C), from then on", tuple(means), (max(load, compute),) * len(rows)),
    )
    return Table(
        f"A loader of L = {load:.3f} s a batch and a simulated device of C = {compute:.3f} s, {num_steps} steps",
        _COLUMNS,
        rows,
        _notes(times, num_steps),
        (Plot(f"The first {num_steps} steps", "data.prefetch_factor", "seconds a step", "lines", curves),),
        finding=_POSTPONES if load > compute else _KEEPS_UP,
    )


_POSTPONES = "A queue only postpones the waits of a slow loader: once the queue is empty, each step waits."
_KEEPS_UP = "This loader is as fast as the device, so a queue of any depth hides it."


def _row(depth: int, turns: Sequence[Drained], times: Times) -> tuple[Cell, ...]:
    load, compute = times.load_seconds, times.compute_seconds
    num_ready, num_steps = round(median(turn.num_ready for turn in turns)), len(turns[0].waits)
    ready = num_ready + times.read_ahead
    unfinished = times.unfinished_seconds
    simulated = simulated_waits([load] * num_steps, compute, num_ready + 1, unfinished_seconds=unfinished)
    hidden = [_hidden(turn.waits, load) for turn in turns]
    hidden_by_law = hidden_steps(load, compute, ready)
    last = num_steps // _STEADY
    steady = compute + median(wait for turn in turns for wait in turn.waits[-last:])
    return (
        str(depth),
        float(num_ready),
        float(median(hidden)),
        float(_hidden(simulated, load)),
        math.floor(hidden_by_law) + 1.0 if math.isfinite(hidden_by_law) else None,
        *median_cells([_mean(turn, times) for turn in turns], "{:.3f}"),
        mean_step_seconds(load, compute, ready, num_steps),
        steady if max(hidden) <= num_steps - last else None,
        max(load, compute),
    )


def _hidden(waits: Sequence[float], load_seconds: float) -> int:
    """Number of steps before the first wait."""
    first = first_wait(waits, WAITED * load_seconds)
    return len(waits) if first is None else first


def _mean(turn: Drained, times: Times) -> float:
    """Mean seconds a step."""
    return times.compute_seconds + fmean(turn.waits)


def _notes(times: Times, num_steps: int) -> tuple[str, ...]:
    return (
        "The device is simulated: each of its steps ends at a fixed deadline, and its host sleeps until then. The "
        "loader is the real loader with one worker; it takes "
        f"{times.load_seconds / times.compute_seconds:.2f} times as long as the device.",
        "Theory: with Q batches ready, steps 0 to (Q - 1) / (1 - C/L) do not wait (C: seconds to compute a batch, L: "
        f"to load one). Waits of less than {WAITED:.0%} of L do not count. While the queue is full, the worker reads "
        f"one more batch, which then needs {times.unfinished_seconds:.3f} s of decoding and counts as "
        f"{times.read_ahead:.2f} batches.",
        "A queue only postpones the effect of a slow loader: once the queue is empty, each step takes max(L, C) at any "
        f"depth of the queue. The mean over {num_steps} steps favours a deep queue; over an epoch the advantage "
        "vanishes.",
        "A queue helps a loader that is fast enough on average and sometimes late: see the second table.",
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
            "queue helps: the loader catches up after each late batch.",
        ),
        (Plot("A loader that scatters", "batches ready", "device idle, %", "lines", (curve,)),),
    )


_STARTING, _TIMED = 3, 5
"""Batches that are discarded, and batches that are timed afterwards for the loader's time per batch."""
_POLL_SECONDS, _LEAST_PATIENCE_SECONDS, _PATIENCE = 0.01, 0.1, 3
"""A queue is full if no batch arrives within three times the loader's time per batch."""
_HELD = 4
"""Batches that the training process holds at most, beside prefetch_factor."""


class Options(BaseModel, extra="forbid"):
    """prefetch_factors: depths of the queue. num_steps: of each turn. load_over_compute: by which factor the loader
    is slower than the device. load_seconds: target time per batch, reached by slowing down the storage; None to
    leave the storage as it is.
    """

    prefetch_factors: tuple[PositiveInt, ...] = Field(min_length=1)
    num_steps: int = Field(ge=6, le=10_000)
    load_over_compute: float = Field(gt=1)
    load_seconds: float | None = Field(gt=0)


def run(request: Request) -> list[Table]:
    """Measure and return the tables. Raises ImagenetOptError."""
    options = checked_options(Options, request)
    testbed = Testbed(composed(request.overrides))
    num_requests = len(testbed.samples.storage.groups(testbed.samples.rows[: testbed.loading.batch_size]))
    loading = slowed(testbed.loading, options.load_seconds, num_requests)
    with announced(1) as announce:
        announce("the loader alone")
        # a resumed study needs the same time of the loader
        load_seconds, decode_seconds = cache_of(request).take("the loader alone", lambda: alone(testbed, loading))
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
    The worker reads one batch ahead (see ReadAhead). Without a local cache, which would speed up some batches."""
    options = replace(loading, samples_per_epoch=None, num_workers=1, reads_in_flight=1, cache_gb=0)
    return options if load_seconds is None else replace(options, added_latency_ms=1000 * load_seconds / num_requests)


def alone(testbed: Testbed, loading: LoaderOptions) -> tuple[float, float]:
    """Seconds per batch of a loader whose batches are taken at once, and the part for decoding."""
    with _batches(testbed, replace(loading, prefetch_factor=1), _STARTING + 1) as (loader, batches):
        for _ in range(_STARTING):
            next(batches)
        return _seconds_each(batches), loader.pop_metrics()["loader/decode_seconds"]


def drain(
    testbed: Testbed, loading: LoaderOptions, load_seconds: float, compute_seconds: float, num_steps: int
) -> Drained:
    """Fill the queue, let a simulated device take its batches, then time batches that are taken at once. load_seconds:
    time per batch of the loader alone."""
    timeline = DeviceTimeline()
    with _batches(testbed, loading, 1 + num_steps + int(loading.prefetch_factor)) as (loader, batches):
        next(batches)  # starts the worker
        num_ready = _filled(loader, _PATIENCE * max(_LEAST_PATIENCE_SECONDS, load_seconds))
        for _ in range(num_steps):
            next(batches)
            timeline.submit(compute_seconds)
            timeline.synchronize()  # in the theory, the device takes a batch when it can start it
        for _ in range(loader.num_ready + 1):
            next(batches)
        seconds = _seconds_each(batches)
    return Drained(num_ready, tuple(step.idle_seconds for step in timeline.steps), seconds)


@contextmanager
def _batches(testbed: Testbed, loading: LoaderOptions, num: int) -> Iterator[tuple[DevicePrefetcher, Iterator[object]]]:
    """A loader and its batches: `num` measured batches, the batches in the queue, and the batches timed afterwards."""
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
    """Wait until no further batch arrives; return the number of ready batches."""
    num_ready, since = 0, time.monotonic()
    while time.monotonic() - since < patience_seconds:
        if loader.num_ready != num_ready:
            num_ready, since = loader.num_ready, time.monotonic()
        time.sleep(_POLL_SECONDS)
    return num_ready
