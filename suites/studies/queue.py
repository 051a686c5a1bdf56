"""How long prefetched batches hide a loader that is too slow, compared with the theory.

python -m suites.studies.queue data.root=/data/imagenet --depths 1,2,4,8

The theory: one worker loads a batch in L seconds, unless Q batches already wait. A step takes one batch and computes
for C seconds. All Q batches exist before the first step.
"""

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import Any

from imagenet_opt.config.compose import composed
from imagenet_opt.data.loader import store_of, train_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.display.table import Column
from imagenet_opt.measure.rehearsal import DeviceTimeline
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.comparison import ComparedSetting, Comparison
from suites.studies.command import arguments, measured, show

NUM_STEPS, LOAD_SECONDS, LOAD_OVER_COMPUTE = 30, 0.4, 2.5
"""Steps of a turn; seconds per batch of the slowed loader; how many times as long as a step of the simulated device."""
WAITED = 0.2
"""A step waits for its batch if the wait exceeds this share of the loader's time per batch."""
_TIMED = 5
"""Batches that are timed for the loader's time per batch."""
_POLL_SECONDS, _LEAST_PATIENCE_SECONDS, _PATIENCE = 0.01, 0.1, 3
"""A queue is full if no batch arrives within three times the loader's time per batch."""
_HELD = 4
"""Batches that the training process holds at most, beside prefetch_factor."""


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


@dataclass(frozen=True)
class Drained:
    """One turn. num_ready: batches made before the first step, with the one that the worker has read, not decoded.
    waits: seconds that the device waited before each step. load_seconds: time of the loader per batch."""

    num_ready: int
    waits: tuple[float, ...]
    load_seconds: float

    @property
    def num_hidden(self) -> int:
        """Number of steps before the first wait."""
        waits = enumerate(self.waits)
        return next((step for step, wait in waits if wait > WAITED * self.load_seconds), len(self.waits))


def slowed(testbed: Testbed, load_seconds: float) -> LoaderOptions:
    """A loader with one worker and one request in flight, whose requests of a batch take `load_seconds` longer in all;
    without a local cache, which would speed up some batches."""
    num_requests = len(testbed.samples.storage.groups(testbed.samples.rows[: testbed.loading.batch_size]))
    slow: LoaderOptions = replace(testbed.loading, added_latency_ms=1000 * load_seconds / num_requests)
    return replace(slow, samples_per_epoch=None, num_workers=1, reads_in_flight=1, cache_gb=0)


def drain(testbed: Testbed, loading: LoaderOptions, compute_seconds: float, num_steps: int) -> Drained:
    """Fill the queue, let a simulated device take its batches, then time batches that are taken at once."""
    num_batches = 2 + num_steps + int(loading.prefetch_factor) + _HELD + _TIMED
    listed = testbed.samples.listed(testbed.samples.rows, num_batches * loading.batch_size)
    timeline, store = DeviceTimeline(), store_of(listed, loading)
    loader = train_loader(listed, loading, testbed.rank_info, store)
    loader.finish = lambda batch: batch  # type: ignore[assignment,return-value]
    batches: Any = iter(loader)
    with closing(loader), closing(batches):
        began = time.monotonic()
        next(batches)  # starts the worker
        num_ready = 1 + _filled(loader, max(_LEAST_PATIENCE_SECONDS, _PATIENCE * (time.monotonic() - began)))
        waits = []
        for _ in range(num_steps):
            next(batches)
            waits.append(timeline.submit(compute_seconds))
            timeline.synchronize()  # in the theory, the device takes a batch when it can start it
        for _ in range(loader.num_ready + 1):
            next(batches)
        began = time.monotonic()
        for _ in range(_TIMED):
            next(batches)
        load_seconds = (time.monotonic() - began) / _TIMED
    return Drained(num_ready, tuple(waits), load_seconds)


def _filled(loader: DevicePrefetcher, patience_seconds: float) -> int:
    """Wait until no further batch arrives; return the number of ready batches."""
    num_ready, since = 0, time.monotonic()
    while time.monotonic() - since < patience_seconds:
        if loader.num_ready != num_ready:
            num_ready, since = loader.num_ready, time.monotonic()
        time.sleep(_POLL_SECONDS)
    return num_ready


def main() -> None:
    given = arguments(__doc__, depths="1,2,4,8")
    compute, testbed = LOAD_SECONDS / LOAD_OVER_COMPUTE, Testbed(composed(tuple(given.overrides)))
    loading = slowed(testbed, LOAD_SECONDS)
    settings = {
        f"data.prefetch_factor={depth}": ComparedSetting(
            (str(depth),),
            partial(drain, testbed, replace(loading, prefetch_factor=depth), compute, NUM_STEPS),
            against=f"data.prefetch_factor={given.depths[0]}" if number else None,
        )
        for number, depth in enumerate(given.depths)
    }

    def law(turns: Sequence[Drained]) -> tuple[float, float, float]:
        """Load time, compute time and ready batches."""
        load = median(turn.load_seconds for turn in turns)
        return load, compute, median(turn.num_ready for turn in turns)

    def hidden_by_law(turns: Sequence[Drained]) -> float | None:
        hidden = hidden_steps(*law(turns))
        return math.floor(hidden) + 1 if math.isfinite(hidden) else None

    comparison = Comparison(
        f"A slow loader and a simulated device of C = {compute:.3f} s a batch",
        ("prefetch",),
        "steps/s",
        settings,
        measured(settings, given.repeats),
        lambda turn: 1 / (compute + fmean(turn.waits)),
        more={
            Column("by the law", "{:.2f}"): lambda turns: 1 / mean_step_seconds(*law(turns), NUM_STEPS),
            Column("ready at first", "{:,.0f}"): lambda turns: median(turn.num_ready for turn in turns),
            Column("steps that do not wait", "{:,.0f}"): lambda turns: median(turn.num_hidden for turn in turns),
            Column("steps by the law", "{:,.0f}"): hidden_by_law,
        },
    )
    note = (
        f"By the law, steps 0 to (Q - 1) / (1 - C/L) do not wait. Waits of less than {WAITED:.0%} of L do not count. "
        "The mean over a few steps favours a deep queue; over an epoch the advantage vanishes."
    )
    finding = "A queue only postpones the waits of a slow loader: once the queue is empty, each step waits."
    show(comparison.table(note, finding=finding))


if __name__ == "__main__":
    main()
