"""Finds workers, prefetched batches and requests in flight with which the loader outpaces the device."""

from collections.abc import Callable
from dataclasses import replace

from imagenet_opt import machine
from imagenet_opt.data.loader import train_loader
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rounds import Deadline, TurnFailed
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import SKIPPED_ROUNDS_COLD, Span, drain
from imagenet_opt.tune.climb import Climb, Setting, climb, text
from imagenet_opt.tune.settings import KEYS, axes

ENOUGH = 1.2
"""Times the rate of the device: the speed of storage varies, and the training process needs a share of the CPUs."""


def needed_rate(testbed: Testbed, device_rate: float) -> float:
    """Images per second that the device takes, at the smallest image size of the run."""
    return device_rate * max((phase.speed for phase in testbed.growing), default=1.0)


def tune_loader(
    testbed: Testbed, deadline: Deadline, announce: Callable[[str], None], *, needed: float | None, seconds: float
) -> Climb:
    """Measure the loader alone, on files outside memory if possible, until it gives ENOUGH times the `needed` images
    per second. Raises TurnFailed if the configured setting cannot be measured."""
    start: Setting = {key: getattr(testbed.loading, key.removeprefix("data.")) for key in KEYS}
    is_first = True

    def turn(setting: Setting) -> float:
        nonlocal is_first
        if not is_first:
            deadline.check(Span(seconds).limit)
        is_first = False
        announce(f"the loader: {text(setting)}")
        try:
            return rate_of(testbed, setting, seconds)
        except ImagenetOptError as error:
            raise TurnFailed(str(error)) from error

    cpus = max(1, machine.usable_cpus() // testbed.rank_info.sharing_cpus)
    return climb(start, axes(cpus), turn, enough=None if needed is None else ENOUGH * needed)


def rate_of(testbed: Testbed, setting: Setting, seconds: float) -> float:
    """Images per second of the loader."""
    changes = {key.removeprefix("data."): value for key, value in setting.items()}
    index = testbed.samples.listed(testbed.samples.cold_rows())
    loading = replace(testbed.loading, samples_per_epoch=None, **changes)
    loader = train_loader(index, loading, testbed.rank_info, testbed.samples.store_for(index, cold=True))
    return drain(loader, Span(seconds), skipped_rounds=SKIPPED_ROUNDS_COLD).images_per_second
