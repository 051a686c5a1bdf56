"""Finds workers, prefetched batches and requests in flight with which the loader outpaces the device."""

from collections.abc import Callable
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
from imagenet_opt.tune.coordinate_search import CoordinateSearch, climb
from imagenet_opt.tune.device_turns import Changes

ENOUGH = 1.2
"""Times the rate of the device: the speed of storage varies, and the training process needs a share of the CPUs."""
_KEYS = ("num_workers", "prefetch_factor", "reads_in_flight")


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


@dataclass
class Loader:
    """target: sufficient images per second, or None if unknown. smallest: image size in pixels at which the device is
    fastest; None if the size does not change. num_processes: processes of a node, which share its CPUs; the settings
    are those of one process."""

    climb: CoordinateSearch[LoaderSetting]
    changes: Changes
    target: float | None
    num_processes: int
    smallest: int | None = None


def tune_loader(
    testbed: Testbed, deadline: Deadline, announce: Callable[[str], None], *, device_rate: float | None, seconds: float
) -> Loader:
    """Measure the loader alone, on files outside memory if possible. device_rate: images per second of the device.
    Raises TurnFailed if the configured setting cannot be measured."""
    rank_info = testbed.rank_info
    loading = testbed.loading
    start = LoaderSetting(loading.num_workers, loading.prefetch_factor, loading.reads_in_flight)
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

    fastest = max(testbed.growing, key=lambda phase: phase.speed, default=None)
    target = None if device_rate is None else ENOUGH * device_rate * (1 if fastest is None else fastest.speed)
    cpus = max(1, machine.usable_cpus() // rank_info.sharing_cpus)
    climbed = climb(start, (partial(_workers, cpus), _prefetch, _reads), turn, enough=target)
    smallest = None if fastest is None else fastest.image_size
    return Loader(climbed, climbed.best.beside(start), target, rank_info.local_processes, smallest)


def _rate(testbed: Testbed, rank_info: RankInfo, setting: LoaderSetting, seconds: float) -> Ceiling:
    loading = replace(testbed.loading, samples_per_epoch=None, **{key: getattr(setting, key) for key in _KEYS})
    rows = testbed.samples.cold_rows()
    index = testbed.samples.listed(rows)
    loader = train_loader(index, loading, rank_info, testbed.samples.store_for(index, cold=True))
    return drain(loader, Span(seconds), skipped_rounds=SKIPPED_ROUNDS_COLD)


def _workers(cpus: int, best: LoaderSetting) -> list[LoaderSetting]:
    """Numbers of workers to try: one per CPU is the likely best; fewer if the storage or threads are the limit."""
    now = cpus if best.num_workers == "auto" else min(best.num_workers, cpus)
    others = dict.fromkeys((cpus, cpus - cpus // 4, cpus // 2))
    return [replace(best, num_workers=num) for num in others if num > 0 and num != now]


def _prefetch(best: LoaderSetting) -> list[LoaderSetting]:
    now = 4 if best.prefetch_factor == "auto" else best.prefetch_factor
    return [replace(best, prefetch_factor=2 * now), replace(best, prefetch_factor=max(1, now // 2))]


def _reads(best: LoaderSetting) -> list[LoaderSetting]:
    """Requests in flight to try: first the number that the latency suggests, then more."""
    return [replace(best, reads_in_flight=num) for num in ("auto", 64, 256) if num != best.reads_in_flight]
