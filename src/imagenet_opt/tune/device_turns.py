"""Runs turns of the device alone, each in a process of its own, within the available time."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

from omegaconf import DictConfig, open_dict

from imagenet_opt.config.build import device_of, num_processes, share_batch
from imagenet_opt.config.compose import composed
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rounds import Deadline, OutOfTime, TurnFailed
from imagenet_opt.probe.isolated import Hung
from imagenet_opt.probe.memory import device_steps
from imagenet_opt.tune.coordinate_search import CoordinateSearch, climb

Changes = tuple[str, ...]
"""Overrides beside those of the command line."""
COMPILE_KEY = "callbacks.acceleration.compile"
_LEAST_COMPILE_SECONDS = 30.0
"""With less time left, nothing is compiled. Our choice: the time is not known in advance, and code that was compiled
before comes from a cache."""
_GRACE_SECONDS = 60.0
"""The first turn may exceed the budget by so many seconds, because a tuning needs at least one rate."""


class Turns:
    """Turns of a configuration. climbs: by title, with the changes of each setting; the first setting is the
    configured one. compile_seconds: by changes, the longest compilation."""

    def __init__(
        self, overrides: Sequence[str], num_classes: int, deadline: Deadline, announce: Callable[[str], None]
    ) -> None:
        self.overrides = tuple(overrides)
        self.num_classes = num_classes
        self.deadline = deadline
        self.announce = announce
        self.compile_seconds: dict[Changes, float] = {}
        self.climbs: dict[str, tuple[CoordinateSearch[str], Mapping[str, Changes]]] = {}
        self._start_seconds: float | None = None

    def config(self, changes: Sequence[str]) -> DictConfig:
        """The configuration with these changes; a failed compilation is then an error."""
        config = composed((*self.overrides, *changes))
        with open_dict(config):
            config.model.num_classes = self.num_classes
            share_batch(config, num_processes(config, device_of(config))[1])
            if "acceleration" in config.callbacks:
                config.callbacks.acceleration.on_failure = "stop"
        return config

    def fastest(
        self, title: str, settings: Mapping[str, Changes], seconds: float, share: float
    ) -> CoordinateSearch[str]:
        """Compare each setting with the best setting before it; the first setting is the configured one. Raises
        TurnFailed if the configured setting fails, OutOfTime if it gets no turn."""

        def turn(name: str) -> float:
            return self.rate(settings[name], seconds, share=share, name=f"{title}: {name}")

        start, *others = settings
        climbed = climb(start, [partial(_only, name) for name in others], turn, enough=None)
        self.climbs[title] = (climbed, settings)
        if not climbed.turns:
            raise OutOfTime
        return climbed

    def rate(self, changes: Changes, seconds: float, *, share: float, name: str) -> float:
        """Images per second. share: part of the budget that may be over at the end. Raises TurnFailed, OutOfTime."""
        config = self.config(changes)
        compiles = bool(config.callbacks.get("acceleration", {}).get("compile", False))
        limit = self.deadline.seconds + _GRACE_SECONDS
        if self._start_seconds is not None:
            self.deadline.check(self._start_seconds + compiles * _LEAST_COMPILE_SECONDS + seconds, share)
            limit = self.deadline.left(share)
        self.announce(name)
        began = time.monotonic()
        try:
            speed = device_steps("rate", config, limit_seconds=limit, seconds=seconds)
        except Hung as error:
            action = "compiled and measured" if compiles else "measured"
            raise TurnFailed(f"not {action} within {limit:.0f} s: budget") from error
        except ImagenetOptError as error:
            raise TurnFailed(str(error)) from error
        start_seconds = time.monotonic() - began - seconds
        if (compile_seconds := speed["compile_seconds"]) is not None:
            self.compile_seconds[changes] = max(compile_seconds, self.compile_seconds.get(changes, 0.0))
            start_seconds -= compile_seconds
        self._start_seconds = max(self._start_seconds or 0.0, start_seconds)
        return float(median(speed["windows"]))


def _only(name: str, best: str) -> list[str]:
    """An axis that tries one setting, whatever the best setting so far is."""
    return [name]
