"""What was measured of a loader's queue beside what the law says, as tables."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from imagenet_opt.display.table import Cell, Column, Plot, Series, Sheet, interval, series
from imagenet_opt.measure.queue_law import first_wait, hidden_steps, idle_share, mean_step_seconds, simulated_waits
from imagenet_opt.measure.stats.intervals import median_interval

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
    """One turn. num_ready: batches made before the first step. waits: seconds that the device waited before each.

    load_seconds: of the loader for a batch, in the same turn.
    """

    num_ready: int
    waits: tuple[float, ...]
    load_seconds: float


@dataclass(frozen=True)
class Times:
    """Seconds for a batch, of the loader and of the device.

    decode_seconds: part of the loader's. When the queue is full its worker reads one batch more and waits; this part
    is left of it then.
    """

    load_seconds: float
    compute_seconds: float
    decode_seconds: float

    @property
    def read_ahead(self) -> float:
        """Of that batch, 0 to 1: so much of it is made."""
        return 1 - self.unfinished_seconds / self.load_seconds

    @property
    def unfinished_seconds(self) -> float:
        return min(self.decode_seconds, self.load_seconds)


def queue_sheet(found: Mapping[int, Sequence[Drained]], compute_seconds: float, decode_seconds: float) -> Sheet:
    """found: turns of equally many steps, by depth of the queue."""
    load = statistics.median(turn.load_seconds for turns in found.values() for turn in turns)
    times, compute = Times(load, compute_seconds, decode_seconds), compute_seconds
    num_steps = len(next(iter(found.values()))[0].waits)
    seconds = {float(depth): median_interval([_mean(turn, times) for turn in turns]) for depth, turns in found.items()}
    law = [
        mean_step_seconds(load, compute, _num_ready(turns) + times.read_ahead, num_steps) for turns in found.values()
    ]
    curves = (
        series("measured", seconds),
        Series("by the law", tuple(seconds), tuple(law)),
        Series("max(L, C), for ever after", tuple(seconds), (max(load, compute),) * len(law)),
    )
    return Sheet(
        f"A loader of L = {load:.3f} s a batch and a simulated device of C = {compute:.3f} s, {num_steps} steps",
        _COLUMNS,
        tuple(_row(depth, turns, times) for depth, turns in found.items()),
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
        "The law: steps 0 to (Q - 1) / (1 - C/L) do not wait, with Q batches ready before the first. A step has waited "
        f"here if it waited more than {WAITED:.0%} of L. With a full queue the worker goes on to read one more, and "
        f"{times.unfinished_seconds:.3f} s of it are left, to decode it: it counts as {times.read_ahead:.2f} of one.",
        "A queue does not cure a slow loader, it postpones: once it is drained each step takes max(L, C), however deep "
        f"it was. A mean over {num_steps} steps flatters a deep queue; over an epoch nothing is left of that.",
        "It does help a loader that is quick enough on average and late now and then: the second table.",
    )


def scattered_sheet() -> Sheet:
    """What a queue is good for, by simulation alone."""
    load = np.random.default_rng(0).exponential(_SCATTERED_LOAD, _SCATTERED_STEPS).tolist()
    idle = [100 * idle_share(simulated_waits(load, 1.0, depth), 1.0) for depth in _DEPTHS]
    curve = Series("idle", _DEPTHS, tuple(idle))
    return Sheet(
        f"Calculated, not measured: a loader whose times scatter, on average {_SCATTERED_LOAD} of the device's",
        (Column("batches ready", "{:,.0f}"), Column("device idle, %", "{:.1f}")),
        tuple((float(depth), share) for depth, share in zip(_DEPTHS, idle, strict=True)),
        (
            f"The times of {_SCATTERED_STEPS:,} batches are drawn from an exponential distribution. Here a deeper "
            "queue is a cure: the loader catches up again after each late batch.",
        ),
        (Plot("A loader that scatters", "batches ready", "device idle, %", "lines", (curve,)),),
    )
