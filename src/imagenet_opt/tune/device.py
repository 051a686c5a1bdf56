"""Finds the fastest precision, memory format, compilation and batch size on a batch that stays on the device."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_opt.config.build import largest_size
from imagenet_opt.display.table import Column, Table
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rounds import Deadline, TurnFailed
from imagenet_opt.model.optimizer import REFERENCE_BATCH
from imagenet_opt.probe.isolated import Hung
from imagenet_opt.probe.memory import LIMIT_SECONDS, SPARE, MemoryTrials, device_steps
from imagenet_opt.tune.climb import Setting, text

_LEAST_COMPILE_SECONDS = 30.0
"""With less time left, nothing is compiled. Our choice: the time is not known in advance, and code that was compiled
before comes from a cache."""
_GRACE_SECONDS = 60.0
"""The first turn may exceed the budget by so many seconds, because a tuning needs at least one rate. A trial of a batch
may always take so long: it has a start and three steps."""


class Device:
    """Turns of the device alone, each in a process of its own, within the available time. seconds: of a short turn."""

    def __init__(
        self, config: DictConfig, deadline: Deadline, announce: Callable[[str], None], seconds: float = 1.0
    ) -> None:
        self.configured, self.deadline, self.announce, self.seconds = config, deadline, announce, seconds
        self._start_seconds: float | None = None

    def config(self, setting: Setting) -> DictConfig:
        """The configuration with this setting; a failed compilation is then an error."""
        config = self.configured.copy()
        with open_dict(config):
            for key, value in setting.items():
                OmegaConf.update(config, key, value)
            if "acceleration" in config.callbacks:
                config.callbacks.acceleration.on_failure = "stop"
        return config

    def turn(self, share: float) -> Callable[[Setting], float]:
        """Images per second of a setting; raises TurnFailed, OutOfTime. share: part of the budget that may be over at
        the end."""
        return lambda setting: self._rate(setting, share)

    def _rate(self, setting: Setting, share: float) -> float:
        config = self.config(setting)
        compiles = bool(config.callbacks.get("acceleration", {}).get("compile", False))
        limit = self.deadline.seconds + _GRACE_SECONDS
        if self._start_seconds is not None:
            self.deadline.check(self._start_seconds + compiles * _LEAST_COMPILE_SECONDS + self.seconds, share)
            limit = self.deadline.left(share)
        self.announce(f"the device: {text(setting)}")
        began = time.monotonic()
        try:
            speed = device_steps("rate", config, limit_seconds=limit, seconds=self.seconds)
        except Hung as error:
            action = "compiled and measured" if compiles else "measured"
            raise TurnFailed(f"not {action} within {limit:.0f} s: budget") from error
        except ImagenetOptError as error:
            raise TurnFailed(str(error)) from error
        start_seconds = time.monotonic() - began - self.seconds - (speed["compile_seconds"] or 0.0)
        self._start_seconds = max(self._start_seconds or 0.0, start_seconds)
        return float(median(speed["windows"]))


def trials_of(device: Device, setting: Setting, share: float) -> MemoryTrials:
    """Trials of batches within this share of the budget."""
    starts: list[float] = []

    def before(what: str) -> None:
        starts.append(device.deadline.passed)
        if len(starts) > 1:  # the next trial probably takes as long as the last trial
            device.deadline.check(starts[-1] - starts[-2], share)
        device.announce(what)

    def limit() -> float:
        return min(LIMIT_SECONDS, max(_GRACE_SECONDS, device.deadline.left(share)))

    return MemoryTrials(device.config(setting), before, limit)


def table_of(trials: MemoryTrials, size: int) -> Table:
    """What fits. size: the chosen batch."""
    rows: list[Any] = []
    for trial in trials.tried:
        rows.append((str(trial.batch), trial.peak_gib, "fits" if trial.peak_gib else trial.why or "out of memory"))
    columns = (Column("batch"), Column("peak GiB", "{:.2f}"), Column("verdict"))
    lr = trials.config.optimizer.lr
    notes = (
        f"At {largest_size(trials.config)} px, not compiled, with {100 * SPARE:.0f} % of the free memory left over.",
        f"lr {lr * size / REFERENCE_BATCH:.3g} for {size} images in one process: {lr:g} per 256 images.",
    )
    return Table("what fits into the memory", columns, tuple(rows), notes)
