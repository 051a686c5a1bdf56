"""Tunes everything in order: the device alone, the batch size, the loader."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import torch
from lightning.pytorch import seed_everything
from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_opt import machine
from imagenet_opt.config.build import image_sizes, trained_network
from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import train_program
from imagenet_opt.display.progress import announced, say
from imagenet_opt.display.table import Table
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure.stats.rounds import Deadline, OutOfTime, TurnFailed
from imagenet_opt.model.optimizer import REFERENCE_BATCH
from imagenet_opt.probe.isolated import Hung
from imagenet_opt.probe.memory import SPARE, device_steps, most_images, num_train
from imagenet_opt.probe.model_flops import forward_flops
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span
from imagenet_opt.training.quiet import quiet
from imagenet_opt.tuning.climb import Axis, Climb, Setting, climb, each, text, words
from imagenet_opt.tuning.settings import BATCH, COMPILE, KEYS, axes, formats, larger_batches, ways

FORMATS_SHARE, COMPUTE_SHARE, BATCH_SHARE = 0.36, 0.75, 0.85
"""Parts of the budget that may be over after precision and memory order, after compilation, and after the batch size;
the loader has the rest. On a CPU, formats take about ten turns and compilation takes about seven."""
ENOUGH = 1.2
"""Rate of a sufficient loader over the rate of the device: the speed of storage varies, and the training process needs
a share of the CPUs."""
_TURNS = 80
"""Number of turns that should fit into the budget, not counting the start of processes."""
_LONGEST_TURN, _SHORTEST_TURN = 8.0, 0.3
_LEAST_COMPILE_SECONDS = 30.0
"""With less time left, nothing is compiled for the first time. Our choice: the time is not known in advance."""
_GRACE_SECONDS = 60.0
"""The first turn may exceed the budget by so many seconds, because a tuning needs at least one rate."""


@dataclass
class Tuning:
    """Results. simulated: name of the simulated accelerator, or None. settings: to change. undecided: settings that
    had all their rounds. lacks_time: whether settings had no turn, or not all of them."""

    simulated: str | None = None
    settings: Setting = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    lacks_time: bool = False
    budget_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def overrides(self) -> list[str]:
        return words(self.settings)

    def add(self, climbed: Climb, title: str, *notes: str) -> None:
        """Take over the result of a search."""
        self.settings |= climbed.changes
        self.tables.append(climbed.table(title, *notes))
        self.undecided += climbed.undecided
        self.lacks_time |= climbed.lacks_time

    def skip(self, part: str, error: Exception) -> None:
        """Say that a part is not tuned."""
        self.notes.append(f"{part} is not tuned: {error if str(error) else 'no time was left'}")
        self.lacks_time |= isinstance(error, OutOfTime)


def tune(config: DictConfig, overrides: tuple[str, ...], budget_seconds: float) -> Tuning:
    """Measure within the budget, not counting start-up. config: composed from `overrides`. Raises ImagenetOptError."""
    quiet()
    testbed = Testbed(config)
    rehearsal = testbed.simulated
    tuning = Tuning(None if rehearsal is None else str(rehearsal.name), budget_seconds=budget_seconds)
    seed_everything(testbed.config.seed, verbose=False)
    deadline = Deadline(budget_seconds)
    seconds = min(_LONGEST_TURN, max(_SHORTEST_TURN, budget_seconds / _TURNS))
    with announced(None, budget_seconds=budget_seconds) as announce:
        if rehearsal is None:
            if not torch.cuda.is_available():
                say("no GPU here: the network runs on the CPU; rehearse=a10g simulates one instead")
            rate = tune_device(
                tuning, TunedDevice(testbed.config, deadline, announce, seconds), num_train(testbed.data)
            )
        else:
            tuning.notes.append(f"simulated {tuning.simulated}: only the loader is tuned, without the real device")
            rate = testbed.rated
        if tuning.settings:
            testbed = Testbed(composed((*overrides, *tuning.overrides)))
        needed = None if rate is None else rate * _speed_of_smallest(image_sizes(composed(overrides)), testbed.config)
        try:
            climbed = tune_loader(testbed, deadline, announce, needed=needed, seconds=seconds)
        except TurnFailed as error:
            tuning.skip("the loader", error)
        else:
            simulated = f", simulated {tuning.simulated}" if tuning.simulated else ""
            tuning.add(climbed, f"loader alone{simulated}", *_beside(climbed, needed))
    tuning.seconds = deadline.passed
    return tuning


def _speed_of_smallest(sizes: list[int], config: DictConfig) -> float:
    """How many times as many images the device trains at the smallest image size of the run as at the largest."""
    if len(set(sizes)) == 1:
        return 1.0
    net = trained_network(config)
    return forward_flops(net, max(sizes)) / forward_flops(net, min(sizes))


def _beside(climbed: Climb, needed: float | None) -> list[str]:
    """The loader beside the device."""
    if needed is None:
        return []
    limit = f"; {ENOUGH:g} times is enough, so the device is the limit" if climbed.is_enough else ""
    return [f"The device takes {needed:,.0f} images/s; the loader gives {climbed.rate / needed:.1f} times that{limit}."]


@dataclass
class TunedDevice:
    """Turns on a batch that stays on the device, each in a process of its own. seconds: of a short turn."""

    configured: DictConfig
    deadline: Deadline
    announce: Callable[[str], None]
    seconds: float = 1.0
    _start_seconds: float | None = None
    _compile_seconds: dict[str, float] = field(default_factory=dict)

    def climb(self, start: Setting, axes: Sequence[Axis], share: float, **options: float) -> Climb:
        """Improve `start`. share: part of the budget that may be over at the end. options: see `device_steps.rate`."""
        rate = partial(self._rate, share=share, options=options)
        return climb(start, [axes], rate, deadline=self.deadline, share=share)

    def _rate(self, setting: Setting, share: float, options: dict[str, float]) -> float:
        config = self.configured.copy()
        with open_dict(config):
            for key, value in setting.items():
                OmegaConf.update(config, key, value)
            if "acceleration" in config.callbacks:
                config.callbacks.acceleration.on_failure = "stop"
        compiles = bool(config.callbacks.get("acceleration", {}).get("compile", False))
        limit = self.deadline.seconds + _GRACE_SECONDS
        if self._start_seconds is not None:
            compiling = self._compile_seconds.get(text(setting), _LEAST_COMPILE_SECONDS) if compiles else 0.0
            self.deadline.check(self._start_seconds + compiling + self.seconds, share)
            limit = self.deadline.left(share)
        self.announce(f"the device: {text(setting)}")
        began = time.monotonic()
        try:
            speed = device_steps("rate", config, limit_seconds=limit, seconds=self.seconds, **options)
        except Hung as error:
            action = "compiled and measured" if compiles else "measured"
            raise TurnFailed(f"not {action} within {limit:.0f} s: budget") from error
        except ImagenetOptError as error:
            raise TurnFailed(str(error)) from error
        self._compile_seconds[text(setting)] = speed["compile_seconds"] or 0.0
        start_seconds = time.monotonic() - began - self.seconds - self._compile_seconds[text(setting)]
        self._start_seconds = max(self._start_seconds or 0.0, start_seconds)
        return float(median(speed["windows"]))


def tune_device(tuning: Tuning, device: TunedDevice, num_train: int) -> float | None:
    """Images per second of the tuned device; None if unknown. num_train: images of an epoch. Raises ConfigError if the
    configuration does not train."""
    config, has_acceleration = device.configured, "acceleration" in device.configured.callbacks
    fixed: Setting = {COMPILE: False} if has_acceleration else {}
    try:
        climbed = device.climb(fixed, each(fixed | one for one in formats(config)), FORMATS_SHARE)
    except TurnFailed as error:
        raise ConfigError(f"this configuration does not train: {error}; run {train_program()} with it first") from error
    tuning.add(climbed, "device alone: precision and memory order, not compiled")
    rate: float | None = climbed.rate
    if has_acceleration:
        start = dict(tuning.settings)
        try:
            climbed = device.climb(start, each(start | way for way in ways(config)), COMPUTE_SHARE)
            tuning.add(climbed, "device alone: compilation")
            rate = climbed.rate
        except (TurnFailed, OutOfTime) as error:
            tuning.skip("compilation", error)
            rate = None if config.callbacks.acceleration.compile else rate
    return _tune_batch(tuning, device, most_images(num_train)) or rate


def _tune_batch(tuning: Tuning, device: TunedDevice, most: int) -> float | None:
    """Images per second with the chosen batch; None if no batches were compared."""
    config = device.configured
    if config.model.micro_batch_size is not None or config.data.get("global_batch_size") is not None:
        tuning.notes.append("the batch size stays, since model.micro_batch_size or data.global_batch_size is set")
        return None
    start = tuning.settings | {BATCH: config.data.batch_size}
    try:
        climbed = device.climb(start, [larger_batches(start, most)], BATCH_SHARE, spare=SPARE)
    except (TurnFailed, OutOfTime) as error:
        tuning.skip("the batch size", error)
        return None
    size, lr = climbed.best[BATCH], config.optimizer.lr
    note = f"lr {lr * size / REFERENCE_BATCH:.3g} for {size} images in one process: {lr:g} per 256 images."
    memory = f"With {100 * SPARE:.0f} % of the free memory left over."
    tuning.add(climbed, "device alone: larger batches", memory, note)
    return climbed.rate


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
    stages = [[axis] for axis in axes(cpus)]
    return climb(start, stages, turn, enough=None if needed is None else ENOUGH * needed, deadline=deadline)


def rate_of(testbed: Testbed, setting: Setting, seconds: float) -> float:
    """Images per second of the loader."""
    changes = {key.removeprefix("data."): value for key, value in setting.items()}
    index = testbed.samples.listed(testbed.samples.cold_rows())
    return testbed.load(index, Span(seconds), cold=True, **changes).images_per_second
