"""Tunes everything in order: the device alone, the batch size, the loader."""

from dataclasses import dataclass, field

import torch
from lightning.pytorch import seed_everything
from omegaconf import DictConfig

from imagenet_opt.config.compose import composed
from imagenet_opt.display.progress import announced, say
from imagenet_opt.display.table import Table
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure.stats.rounds import Deadline, OutOfTime, TurnFailed
from imagenet_opt.probe.memory import MemoryTrials, explained, most_images, num_train
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.training.quiet import quiet
from imagenet_opt.tune.climb import Climb, Setting, climb, each, words
from imagenet_opt.tune.device import Device, table_of, trials_of
from imagenet_opt.tune.loader import ENOUGH, needed_rate, tune_loader
from imagenet_opt.tune.settings import BATCH, COMPILE, formats, ways

FORMATS_SHARE, COMPUTE_SHARE, BATCH_SHARE = 0.36, 0.6, 0.85
"""Parts of the budget that may be over after precision and memory order, after compilation, and after the batch size;
the loader has the rest. On a CPU, formats take about ten turns and compilation takes about seven."""
_TURNS = 80
"""Number of turns that should fit into the budget, not counting the start of processes."""
_LONGEST_TURN, _SHORTEST_TURN = 8.0, 0.3


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


def tune(overrides: tuple[str, ...], budget_seconds: float) -> Tuning:
    """Measure within the budget, not counting start-up. Raises ImagenetOptError."""
    quiet()
    testbed = Testbed(composed(overrides))
    rehearsal = testbed.simulated
    tuning = Tuning(None if rehearsal is None else str(rehearsal.name), budget_seconds=budget_seconds)
    seed_everything(testbed.config.seed, verbose=False)
    deadline = Deadline(budget_seconds)
    seconds = min(_LONGEST_TURN, max(_SHORTEST_TURN, budget_seconds / _TURNS))
    with announced(None, budget_seconds=budget_seconds) as announce:
        if rehearsal is None:
            if not torch.cuda.is_available():
                say("no GPU here: the network runs on the CPU; rehearse=a10g simulates one instead")
            rate = tune_device(tuning, Device(testbed.config, deadline, announce, seconds), num_train(testbed.data))
        else:
            tuning.notes.append(f"simulated {tuning.simulated}: only the loader is tuned, without the real device")
            rate = testbed.rated
        if tuning.settings:
            testbed = Testbed(composed((*overrides, *tuning.overrides)))
        needed = None if rate is None else needed_rate(testbed, rate)
        try:
            climbed = tune_loader(testbed, deadline, announce, needed=needed, seconds=seconds)
        except TurnFailed as error:
            tuning.skip("the loader", error)
        else:
            simulated = f", simulated {tuning.simulated}" if tuning.simulated else ""
            tuning.add(climbed, f"loader alone{simulated}", *_beside(climbed, needed))
    tuning.seconds = deadline.passed
    return tuning


def _beside(climbed: Climb, needed: float | None) -> list[str]:
    """The loader beside the device."""
    if needed is None:
        return []
    limit = f"; {ENOUGH:g} times is enough, so the device is the limit" if climbed.is_enough else ""
    return [f"The device takes {needed:,.0f} images/s; the loader gives {climbed.rate / needed:.1f} times that{limit}."]


def tune_device(tuning: Tuning, device: Device, num_train: int) -> float | None:
    """Images per second of the tuned device; None if unknown. num_train: images of an epoch. Raises ConfigError if the
    configuration does not train."""
    config, has_acceleration = device.configured, "acceleration" in device.configured.callbacks
    fixed: Setting = {COMPILE: False} if has_acceleration else {}
    try:
        climbed = climb(fixed, each(fixed | one for one in formats(config)), device.turn(FORMATS_SHARE))
    except TurnFailed as error:
        why = explained(error)
        raise ConfigError(f"this configuration does not train: {why}; run python train.py with it first") from error
    tuning.add(climbed, "device alone: precision and memory order, not compiled")
    rate: float | None = climbed.rate
    if has_acceleration:
        start = dict(tuning.settings)
        try:
            climbed = climb(start, each(start | way for way in ways(config)), device.turn(COMPUTE_SHARE))
            tuning.add(climbed, "device alone: compilation")
            rate = climbed.rate
        except (TurnFailed, OutOfTime) as error:
            tuning.skip("compilation", error)
            rate = None if config.callbacks.acceleration.compile else rate
    return _tune_batch(tuning, device, config, most_images(num_train)) or rate


def _tune_batch(tuning: Tuning, device: Device, config: DictConfig, most: int) -> float | None:
    """Images per second with the chosen batch; None if no batches were compared."""
    wanted, start = config.data.batch_size, dict(tuning.settings)
    if config.model.micro_batch_size is not None or config.data.get("global_batch_size") is not None:
        tuning.notes.append("the batch size stays, since model.micro_batch_size or data.global_batch_size is set")
        return None
    climbed, trials = None, trials_of(device, start, BATCH_SHARE)
    try:
        if not trials.fits(wanted):
            too_large = f"{wanted} images do not fit with memory to spare; lower data.batch_size"
            tuning.notes.append(f"{too_large} or set model.micro_batch_size, which changes neither batch nor schedule")
        elif (fitting := _fitting(tuning, trials, wanted, most)) > wanted:
            sizes = sorted({wanted, min(2 * wanted, fitting), fitting})
            first, *others = [start | {BATCH: size} for size in sizes]
            climbed = climb(first, each(others), device.turn(BATCH_SHARE))
    except (ImagenetOptError, TurnFailed, OutOfTime) as error:
        tuning.skip("the batch size", error)
    if trials.tried:
        tuning.tables.append(table_of(trials, wanted if climbed is None else climbed.best[BATCH]))
    if climbed is None:
        return None
    tuning.add(climbed, "device alone: larger batches")
    return climbed.rate


def _fitting(tuning: Tuning, trials: MemoryTrials, wanted: int, most: int) -> int:
    """The largest batch that is known to fit."""
    try:
        return max(wanted, trials.largest(start=2 * wanted, most=max(wanted, most), known=wanted))
    except OutOfTime:
        tuning.lacks_time = True
        return max(trial.batch for trial in trials.tried if trial.peak_gib is not None)
