"""Study `queue`: how long prefetched batches hide a loader that is too slow, compared with the theory.

The theory: one worker loads a batch in L seconds, unless Q batches already wait. A step takes one batch and computes
for C seconds. All Q batches exist before the first step; a partly made batch counts as that part of a batch.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

from pydantic import BaseModel, Field, PositiveInt

from imagenet_opt.config.compose import composed
from imagenet_opt.data.loader import train_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table, interval, series
from imagenet_opt.measure.rehearsal.device_timeline import DeviceTimeline
from imagenet_opt.measure.stats.intervals import median_interval
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.kinds.comparison import Setting, run_rounds
from imagenet_opt.study.request import Request, checked_options

WAITED = 0.2
"""A step waits for its batch if the wait exceeds this share of the loader's time per batch."""
_STEADY = 3
"""The last third of the steps shows the steady state."""
_TIMED = 5
"""Batches that are timed for the loader's time per batch."""
_POLL_SECONDS, _LEAST_PATIENCE_SECONDS, _PATIENCE = 0.01, 0.1, 3
"""A queue is full if no batch arrives within three times the loader's time per batch."""
_HELD = 4
"""Batches that the training process holds at most, beside prefetch_factor."""
_COLUMNS = (
    *(Column("prefetch"), Column("ready at first", "{:,.0f}"), Column("steps that do not wait", "{:,.0f}")),
    *(Column("simulated", "{:,.0f}"), Column("steps by the law", "{:,.0f}")),
    *(Column("seconds a step", "{:.3f}"), Column("interval"), Column("seconds by the law", "{:.3f}")),
    *(Column("steady, seconds a step", "{:.3f}"), Column("steady by the law", "{:.3f}")),
)


def hidden_steps(load_seconds: float, compute_seconds: float, num_ready: float) -> float:
    """Steps up to this number, counted from 0, find their batch ready; inf if the loader is fast enough.

    Step n needs its batch at n * C, and the batch is ready at (n - Q + 1) * L.
    """
    if load_seconds <= compute_seconds:
        return math.inf
    return max(0, num_ready - 1) / (1 - compute_seconds / load_seconds)


def mean_step_seconds(load_seconds: float, compute_seconds: float, num_ready: float, num_steps: int) -> float:
    """Mean duration of the first `num_steps` steps; approaches the larger of the two times."""
    return max(compute_seconds, ((num_steps - num_ready) * load_seconds + compute_seconds) / num_steps)


def simulated_waits(
    load_seconds: Sequence[float], compute_seconds: float, num_ready: int, *, unfinished_seconds: float = 0.0
) -> list[float]:
    """Seconds that each step waits for its batch. load_seconds: of each batch, including the batches ready at first.
    unfinished_seconds: remaining time of the last batch that is ready at first."""
    starts: list[float] = []
    waits: list[float] = []
    free = made = 0.0  # when the device can begin the next step; when the last batch was made
    for step, seconds in enumerate(load_seconds):
        if step == num_ready - 1:
            made = unfinished_seconds
        elif step >= num_ready:
            made = max(made, starts[step - num_ready]) + seconds
        starts.append(max(free, made))
        waits.append(starts[-1] - free)
        free = starts[-1] + compute_seconds
    return waits


class Options(BaseModel, extra="forbid"):
    """prefetch_factors: depths of the queue. num_steps: of each turn. load_over_compute: by which factor the loader
    is slower than the device. load_seconds: time per batch, reached by slowing down the storage."""

    prefetch_factors: tuple[PositiveInt, ...] = Field(min_length=1)
    num_steps: int = Field(ge=6, le=10_000)
    load_over_compute: float = Field(gt=1)
    load_seconds: float = Field(gt=0)


@dataclass(frozen=True)
class Drained:
    """One turn. num_ready: batches ready before the first step. waits: seconds that the device waited before each
    step. load_seconds: time of the loader per batch; decode_seconds: its part for decoding."""

    num_ready: int
    waits: tuple[float, ...]
    load_seconds: float
    decode_seconds: float


def run(request: Request) -> list[Table]:
    """Measure and return the table. Raises ImagenetOptError."""
    options = checked_options(Options, request)
    compute_seconds = options.load_seconds / options.load_over_compute
    testbed = Testbed(composed(request.overrides))
    loading = slowed(testbed, options.load_seconds)
    settings = {
        f"data.prefetch_factor={depth}": Setting(
            (str(depth),),
            partial(drain, testbed, replace(loading, prefetch_factor=depth), compute_seconds, options.num_steps),
        )
        for depth in options.prefetch_factors
    }
    rounds = run_rounds(settings, request, Drained)
    by_depth = {int(settings[name].labels[0]): turns for name, turns in rounds.complete.items()}
    table = queue_table(by_depth, compute_seconds)
    return [replace(table, notes=(*rounds.reasons, *table.notes))]


def slowed(testbed: Testbed, load_seconds: float) -> LoaderOptions:
    """A loader with one worker and one request in flight, whose requests of a batch take `load_seconds` longer in all;
    without a local cache, which would speed up some batches."""
    num_requests = len(testbed.samples.storage.groups(testbed.samples.rows[: testbed.loading.batch_size]))
    slow: LoaderOptions = replace(testbed.loading, added_latency_ms=1000 * load_seconds / num_requests)
    return replace(slow, samples_per_epoch=None, num_workers=1, reads_in_flight=1, cache_gb=0)


def drain(testbed: Testbed, loading: LoaderOptions, compute_seconds: float, num_steps: int) -> Drained:
    """Fill the queue, let a simulated device take its batches, then time batches that are taken at once."""
    timeline = DeviceTimeline()
    with _batches(testbed, loading, 2 + num_steps + int(loading.prefetch_factor)) as (loader, batches):
        began = time.monotonic()
        next(batches)  # starts the worker
        num_ready = _filled(loader, max(_LEAST_PATIENCE_SECONDS, _PATIENCE * (time.monotonic() - began)))
        for _ in range(num_steps):
            next(batches)
            timeline.submit(compute_seconds)
            timeline.synchronize()  # in the theory, the device takes a batch when it can start it
        for _ in range(loader.num_ready + 1):
            next(batches)
        loader.pop_metrics()
        began = time.monotonic()
        for _ in range(_TIMED):
            next(batches)
        load_seconds = (time.monotonic() - began) / _TIMED
        decode_seconds = loader.pop_metrics()["loader/decode_seconds"]
    return Drained(num_ready, tuple(step.idle_seconds for step in timeline.steps), load_seconds, decode_seconds)


@contextmanager
def _batches(testbed: Testbed, loading: LoaderOptions, num: int) -> Iterator[tuple[DevicePrefetcher, Iterator[object]]]:
    """A loader and its batches: `num` measured batches, the batches in the queue, and the batches timed afterwards."""
    samples, num_batches = testbed.samples, num + _HELD + _TIMED
    loader = train_loader(samples.listed(samples.rows, num_batches * loading.batch_size), loading, testbed.rank_info)
    loader.finish = lambda batch: batch  # type: ignore[assignment,return-value]
    batches = iter(loader)
    try:
        yield loader, batches
    finally:
        batches.close()  # type: ignore[attr-defined]
        loader.close()


def _filled(loader: DevicePrefetcher, patience_seconds: float) -> int:
    """Wait until no further batch arrives; return the number of ready batches."""
    num_ready, since = 0, time.monotonic()
    while time.monotonic() - since < patience_seconds:
        if loader.num_ready != num_ready:
            num_ready, since = loader.num_ready, time.monotonic()
        time.sleep(_POLL_SECONDS)
    return num_ready


def queue_table(by_depth: Mapping[int, Sequence[Drained]], compute: float) -> Table:
    """Table of measured and predicted waits. by_depth: turns with the same number of steps, by depth of the queue.
    compute: seconds per batch of the device."""
    all_turns = [turn for turns in by_depth.values() for turn in turns]
    load, num_steps = median(turn.load_seconds for turn in all_turns), len(all_turns[0].waits)
    unfinished = min(load, median(turn.decode_seconds for turn in all_turns))
    last, read_ahead = num_steps // _STEADY, 1 - unfinished / load
    rows, measured = [], {}
    for depth, turns in by_depth.items():
        num_ready = round(median(turn.num_ready for turn in turns))
        simulated = simulated_waits([load] * num_steps, compute, num_ready + 1, unfinished_seconds=unfinished)
        hidden = [_hidden(turn.waits, load) for turn in turns]
        by_law = hidden_steps(load, compute, num_ready + read_ahead)
        measured[float(depth)] = seconds = median_interval([compute + fmean(turn.waits) for turn in turns])
        steady = compute + median(wait for turn in turns for wait in turn.waits[-last:])
        row: tuple[Cell, ...] = (
            *(str(depth), num_ready, median(hidden), _hidden(simulated, load)),
            math.floor(by_law) + 1 if math.isfinite(by_law) else None,
            *(seconds.median, interval(seconds, "{:.3f}")),
            mean_step_seconds(load, compute, num_ready + read_ahead, num_steps),
            steady if max(hidden) <= num_steps - last else None,
            max(load, compute),
        )
        rows.append(row)
    law = Series("by the law", tuple(measured), tuple(float(row[7] or 0) for row in rows))
    steady_law = Series("max(L, C), from then on", tuple(measured), (max(load, compute),) * len(measured))
    curves = (series("measured", measured), law, steady_law)
    return Table(
        f"A loader of L = {load:.3f} s a batch and a simulated device of C = {compute:.3f} s, {num_steps} steps",
        _COLUMNS,
        tuple(rows),
        (
            f"By the law, steps 0 to (Q - 1) / (1 - C/L) do not wait. Waits of less than {WAITED:.0%} of L do not "
            "count. While the queue is full, the worker reads one more batch, which then needs "
            f"{unfinished:.3f} s of decoding and counts as {read_ahead:.2f} batches of Q.",
            f"The mean over {num_steps} steps favours a deep queue; over an epoch the advantage vanishes.",
        ),
        (Plot(f"The first {num_steps} steps", "data.prefetch_factor", "seconds a step", "lines", curves),),
        finding="A queue only postpones the waits of a slow loader: once the queue is empty, each step waits."
        if load > compute
        else "This loader is as fast as the device, so a queue of any depth hides it.",
    )


def _hidden(waits: Sequence[float], load_seconds: float) -> int:
    """Number of steps before the first wait."""
    return next((step for step, wait in enumerate(waits) if wait > WAITED * load_seconds), len(waits))
