"""Finds the fastest precision, memory format and compilation on a batch that stays on the device."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from statistics import median

import torch
from omegaconf import DictConfig, open_dict

from imagenet_opt.config.build import device_of, num_processes, precision_of, share_batch
from imagenet_opt.config.compose import composed
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rounds import Deadline, OutOfTime, TurnFailed
from imagenet_opt.probe.isolated import Hung
from imagenet_opt.probe.memory import device_steps
from imagenet_opt.tune.climb import Climb, Found, climb

Changes = tuple[str, ...]
"""Overrides beside those of the command line."""
_ACCELERATION = "callbacks.acceleration"
_COMPILE_KEY = f"{_ACCELERATION}.compile"
_EAGER = (f"{_COMPILE_KEY}=false",)
_GPU_MODES = ("reduce-overhead", "max-autotune")
_WAYS: dict[str, tuple[str | None, bool]] = {
    "off": (None, False),
    "a CUDA graph": (None, True),
    "default": ("default", False),
    "compile and a CUDA graph": ("default", True),
    **{mode: (mode, False) for mode in _GPU_MODES},
}
"""torch.compile's mode (None: not compiled) and cuda_graph; modes with a long search come last."""
AS_IT_IS = "as configured"
_FORMATS_SHARE = 0.6
"""Of the time for both comparisons: on a CPU, formats take about ten turns and compilation takes about seven."""


_LEAST_COMPILE_SECONDS = 30.0
"""With less time left, nothing is compiled. Our choice: the time is not known in advance, and code that was compiled
before comes from a cache."""
_GRACE_SECONDS = 60.0
"""The first turn may exceed the budget by so many seconds, because a tuning needs at least one rate."""


class Device:
    """Turns of the device alone, each in a process of its own, within the available time.

    overrides: of the command line. climbs: by title; the first setting of each is the configured one.
    """

    def __init__(
        self, overrides: Sequence[str], num_classes: int, deadline: Deadline, announce: Callable[[str], None]
    ) -> None:
        self.overrides, self.num_classes = tuple(overrides), num_classes
        self.deadline, self.announce = deadline, announce
        self.climbs: dict[str, Climb[str]] = {}
        self._compile_seconds: dict[Changes, float] = {}  # the longest
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

    def fastest(self, title: str, settings: Mapping[str, Changes], seconds: float, share: float) -> Climb[str]:
        """Compare each setting with the best setting before it; the first setting is the configured one. Raises
        TurnFailed if the configured setting fails, OutOfTime if it gets no turn."""

        def turn(name: str) -> float:
            return self.rate(settings[name], seconds, share=share, name=f"{title}: {name}")

        start, *others = settings
        climbed = climb(start, [lambda best, name=name: [name] for name in others], turn)  # type: ignore[misc]
        compiled = {name: self._compile_seconds.get(changes) for name, changes in settings.items()}
        climbed.compile_seconds = {name: seconds for name, seconds in compiled.items() if seconds is not None}
        climbed.names, self.climbs[title] = tuple(settings), climbed
        if not climbed.rates:
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
            self._compile_seconds[changes] = max(compile_seconds, self._compile_seconds.get(changes, 0.0))
            start_seconds -= compile_seconds
        self._start_seconds = max(self._start_seconds or 0.0, start_seconds)
        return float(median(speed["windows"]))


def tune_compute(device: Device, config: DictConfig, *, seconds: float, share: float) -> Found:
    """Compare formats without compilation first, then ways to compile the best of them. seconds: of a short turn.
    Raises TurnFailed if the configuration itself does not run."""
    kind = device_of(config)
    fixed = _EAGER if "acceleration" in config.callbacks else ()
    formats = {name: (*fixed, *changes) for name, changes in _formats(config, kind)}
    climbed = device.fastest("precision and memory order, not compiled", formats, seconds, _FORMATS_SHARE * share)
    changes, rate = formats[climbed.best][len(fixed) :], climbed.rate
    if not fixed:
        note = "there is no callbacks.acceleration: memory order and compilation are not tuned"
        return Found(changes, rate, (note,))
    ways = {name: (*changes, *how) for name, how in _ways(config, kind)}
    try:
        climbed = device.fastest("compilation", ways, seconds, share)
    except (TurnFailed, OutOfTime) as error:
        note = f"compilation is not tuned ({str(error) or 'budget'}): {_COMPILE_KEY} stays as configured"
        return Found(changes, None if config.callbacks.acceleration.compile else rate, (note,))
    return Found(ways[climbed.best], climbed.rate)


def _formats(config: DictConfig, device: torch.device) -> Iterator[tuple[str, Changes]]:
    """Formats to compare on this device, by name; the configured one comes first."""
    acceleration = config.callbacks.get("acceleration")

    def effective(precision: str, channels_last: bool, tf32: bool) -> tuple[object, ...]:
        """The settings that the device uses; different words may give the same settings."""
        resolved = precision_of(precision, device)
        return resolved, channels_last, tf32 and device.type == "cuda" and resolved == "32-true"

    configured = acceleration or {"channels_last": False, "tf32": False}
    tried = {effective(config.trainer.precision, configured["channels_last"], configured["tf32"])}
    yield AS_IT_IS, ()
    for precision, channels_last in product(("mixed", "32-true"), (True, False) if acceleration else (False,)):
        if (settings := effective(precision, channels_last, True)) in tried:
            continue
        tried.add(settings)
        changes = [f"trainer.precision={precision}"]
        if acceleration:
            changes += [f"{_ACCELERATION}.channels_last={str(channels_last).lower()}", f"{_ACCELERATION}.tf32=true"]
        order = "channels last" if channels_last else "channels first"
        yield f"{precision}{' with tf32' if settings[2] else ''}, {order}", tuple(changes)


def _ways(config: DictConfig, device: torch.device) -> Iterator[tuple[str, Changes]]:
    """Ways to compile, by name; the configured one comes first."""
    now, on_gpu = config.callbacks.acceleration, device.type == "cuda"
    can_graph = on_gpu and not now.gradient_checkpointing and num_processes(config, device) == (1, 1)
    configured = (now.compile_mode if on_gpu else "default") if now.compile else None
    yield AS_IT_IS, ()
    for name, (mode, graph) in _WAYS.items():
        if (graph and not can_graph) or (mode in _GPU_MODES and not on_gpu):
            continue
        if (mode, graph) == (configured, can_graph and bool(now.cuda_graph)):
            continue
        changes = [f"{_COMPILE_KEY}={str(mode is not None).lower()}"]
        changes += [f"{_ACCELERATION}.compile_mode={mode}"] if mode else []
        changes += [f"{_ACCELERATION}.cuda_graph={str(graph).lower()}"] if on_gpu else []
        yield name, tuple(changes)
