"""Finds workers, prefetched batches and requests in flight with which the loader outpaces the device."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from imagenet_opt import machine
from imagenet_opt.data.loader import RankInfo, train_loader
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.measure.stats.rounds import Deadline, TurnFailed
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import SKIPPED_ROUNDS_COLD, Span, drain
from imagenet_opt.tune.climb import LEAST_GAIN, UNTRIED, Climb, Found, climb
from imagenet_opt.tune.device import Changes

ENOUGH = 1.2
"""Times the rate of the device: the speed of storage varies, and the training process needs a share of the CPUs."""
_KEYS = ("num_workers", "prefetch_factor", "reads_in_flight")
_WHY_STOPPED = {
    "nothing more": f"no other setting is {100 * (LEAST_GAIN - 1):.0f} % faster for certain",
    "budget": f"{UNTRIED} (further settings of the loader)",
}


@dataclass(frozen=True)
class LoaderSetting:
    """Values of data.* keys: numbers or auto."""

    num_workers: Any
    prefetch_factor: Any
    reads_in_flight: Any

    def __str__(self) -> str:
        return f"workers {self.num_workers}, prefetch {self.prefetch_factor}, reads {self.reads_in_flight}"

    def beside(self, other: "LoaderSetting") -> Changes:
        """The overrides that change the other setting into this one."""
        return tuple(f"data.{key}={getattr(self, key)}" for key in _KEYS if getattr(self, key) != getattr(other, key))


def tune_loader(
    testbed: Testbed, deadline: Deadline, announce: Callable[[str], None], *, device_rate: float | None, seconds: float
) -> Found:
    """Measure the loader alone, on files outside memory if possible. device_rate: images per second of the device.
    Raises TurnFailed if the configured setting cannot be measured."""
    rank_info = testbed.rank_info
    local = rank_info.local_processes
    start = LoaderSetting(*(getattr(testbed.loading, key) for key in _KEYS))
    is_first = True

    def turn(setting: LoaderSetting) -> float:
        nonlocal is_first
        if not is_first:
            deadline.check(Span(seconds).limit)
        announce(f"the loader: {setting}")
        try:
            rate = _rate(testbed, rank_info, setting, seconds).images_per_second
        except ImagenetOptError as error:
            raise TurnFailed(str(error)) from error
        is_first = False
        return rate

    cpus = max(1, machine.usable_cpus() // rank_info.sharing_cpus)
    fastest = max(testbed.growing, key=lambda phase: phase.speed, default=None)
    needed = None if device_rate is None else device_rate * (1.0 if fastest is None else fastest.speed)
    climbed = climb(start, axes(cpus), turn, enough=None if needed is None else ENOUGH * needed)
    simulated = "" if testbed.simulated is None else f", simulated {testbed.simulated.name}"
    at_size = "" if fastest is None else f" of {fastest.image_size} px, the smallest of the run"
    notes = [
        "the rate of the device is unknown: it was not measured with all tuned settings"
        if needed is None
        else f"the device takes {needed:,.0f} images/s{at_size}{simulated}"
    ]
    if local > 1:
        notes.append(
            f"{local} processes share the CPUs and the storage; a single process was measured, with 1/{local} of the "
            "CPUs"
        )
    table = climbed.table(f"loader alone{simulated}", *notes, why_stopped(climbed, needed))
    lacks_time = "not all settings of the loader were tried" if climbed.why == "budget" else ""
    return Found(climbed.best.beside(start), table=table, climb=climbed, lacks_time=lacks_time)


def why_stopped(climbed: Climb[LoaderSetting], needed: float | None) -> str:
    """needed: images per second of the device, if known."""
    if climbed.why != "enough" or needed is None:
        return _WHY_STOPPED[climbed.why]
    times = climbed.rate / needed
    return f"the device is the limit: the loader is {times:.1f} times as fast, and {ENOUGH:g} times is enough"


def _rate(testbed: Testbed, rank_info: RankInfo, setting: LoaderSetting, seconds: float) -> Ceiling:
    loading = replace(testbed.loading, samples_per_epoch=None, **{key: getattr(setting, key) for key in _KEYS})
    rows = testbed.samples.cold_rows()
    index = testbed.samples.listed(rows)
    loader = train_loader(index, loading, rank_info, testbed.samples.store_for(index, cold=True))
    return drain(loader, Span(seconds), skipped_rounds=SKIPPED_ROUNDS_COLD)


def axes(cpus: int) -> list[Callable[[LoaderSetting], list[LoaderSetting]]]:
    """Settings to try, given the best: more workers, fewer, more batches ahead, fewer, then requests in flight.

    Fewer workers or batches than configured are faster if the storage, the memory or threads are the limit.
    """

    def vary(key: str, values: Callable[[int], Iterable[Any]], best: LoaderSetting) -> list[LoaderSetting]:
        auto = {"num_workers": cpus, "prefetch_factor": 4}
        now = getattr(best, key)
        now = auto.get(key, now) if now == "auto" else now
        return [replace(best, **{key: value}) for value in dict.fromkeys(values(now)) if value != now]

    return [
        partial(vary, "num_workers", lambda now: [cpus] if now < cpus else []),
        partial(vary, "num_workers", lambda now: [num for num in fewer(min(now, cpus)) if num > 0]),
        partial(vary, "prefetch_factor", lambda now: [2 * now]),
        partial(vary, "prefetch_factor", lambda now: [max(1, now // 2), 1]),
        partial(vary, "reads_in_flight", lambda now: ["auto", 64, 256]),
    ]


def fewer(num_workers: int) -> tuple[int, ...]:
    return num_workers - max(1, num_workers // 4), num_workers // 2, num_workers // 4
