"""Tunes everything in order: the device alone, the batch size, the loader."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from lightning.pytorch import seed_everything
from omegaconf import DictConfig

from imagenet_opt.config.compose import composed
from imagenet_opt.display.progress import announced, say
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure.stats.rounds import Deadline, TurnFailed
from imagenet_opt.model.optimizer import REFERENCE_BATCH
from imagenet_opt.probe.memory import explained, lacks_memory, most_images, num_train
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.training.auto_batch import AUTO
from imagenet_opt.training.quiet import quiet
from imagenet_opt.tune.batch import tune_batch
from imagenet_opt.tune.climb import Climb, Found
from imagenet_opt.tune.device import Changes, Device, tune_compute
from imagenet_opt.tune.loader import tune_loader

COMPUTE_SHARE, BATCH_SHARE = 0.6, 0.85
"""Shares of the budget for the device, and for device and batch together; the loader has the remaining time."""
_TURNS = 80
"""Number of turns that should fit into the budget, not counting the start of processes."""
_LONGEST_TURN, _SHORTEST_TURN = 8.0, 0.3


@dataclass
class Tuning:
    """Results. simulated: name of the simulated accelerator, or None. overrides: settings to change. device_climbs: by
    title. parts: of batch and loader, as far as they were tuned. budget_seconds: the requested time; seconds: the time
    used."""

    simulated: str | None = None
    overrides: Changes = ()
    device_climbs: dict[str, Climb[str]] = field(default_factory=dict)
    parts: list[Found] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    budget_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def climbs(self) -> dict[str, Climb[Any]]:
        """By title, also that of the loader."""
        of_loader = [("loader", part.climb) for part in self.parts if part.climb is not None]
        return {**self.device_climbs, **dict(of_loader)}


def tune(overrides: Changes, budget_seconds: float) -> Tuning:
    """Measure within the budget, not counting start-up. Raises ImagenetOptError."""
    quiet()
    config = composed(overrides)
    rehearsal = config.callbacks.get("rehearsal")
    tuning = Tuning(None if rehearsal is None else str(rehearsal.name), budget_seconds=budget_seconds)
    if rehearsal is None and not torch.cuda.is_available():
        say("no GPU here: the network runs on the CPU; rehearse=a10g simulates one instead")
    seed_everything(config.seed, verbose=False)
    base, testbed = with_number(overrides, config)
    deadline = Deadline(budget_seconds)
    seconds = min(_LONGEST_TURN, max(_SHORTEST_TURN, budget_seconds / _TURNS))
    with announced(None, budget_seconds=budget_seconds) as announce:
        if rehearsal is None:
            num_classes = testbed.config.model.num_classes
            device = Device((*base, *_settled(testbed)), num_classes, deadline, announce)
            rate = tune_device(tuning, device, testbed, seconds, is_auto=config.data.batch_size == AUTO)
        else:
            tuning.notes.append(
                f"simulated {tuning.simulated}: tuning precision, compilation and batch needs the real device"
            )
            rate = testbed.rated
        if tuning.overrides:
            testbed = Testbed(composed((*base, *tuning.overrides)))
        try:
            loader = tune_loader(testbed, deadline, announce, device_rate=rate, seconds=seconds)
            tuning.parts.append(loader)
            tuning.overrides += loader.changes
        except TurnFailed as error:
            tuning.notes.append(f"the loader is not tuned: {error}")
    tuning.seconds = deadline.passed
    return tuning


def with_number(overrides: Changes, config: DictConfig) -> tuple[Changes, Testbed]:
    """Overrides with a batch size in place of data.batch_size=auto, not larger than the data allows; their Testbed."""
    if config.data.batch_size != AUTO:
        return overrides, Testbed(config)
    testbed = Testbed(composed((*overrides, "data.batch_size=1")))
    start = min(REFERENCE_BATCH, most_images(num_train(testbed.data)))
    overrides = (*overrides, f"data.batch_size={start}")
    return overrides, Testbed(composed(overrides))


def _settled(testbed: Testbed) -> Changes:
    """What compile=auto and cuda_graph=auto mean in a whole training."""
    acceleration = testbed.config.callbacks.get("acceleration", {})
    chosen = {key: acceleration[key] for key in ("compile", "cuda_graph") if key in acceleration}
    return tuple(f"callbacks.acceleration.{key}={str(value).lower()}" for key, value in chosen.items())


def tune_device(tuning: Tuning, device: Device, testbed: Testbed, seconds: float, *, is_auto: bool) -> float | None:
    """Images per second that the tuned device needs; None if unknown. is_auto: whether the batch size is chosen here,
    so that it is always written.

    A batch that does not fit at once is measured in micro-batches. A batch that follows from data.global_batch_size
    does not grow. Raises ConfigError if the configuration does not train.
    """
    tuning.device_climbs = device.climbs
    wanted, typed = testbed.loading.batch_size, device.overrides
    grows = testbed.config.data.get("global_batch_size") is None
    most = most_images(num_train(testbed.data)) if grows else wanted
    find_batch = partial(tune_batch, device, wanted=wanted, most=most, seconds=seconds)
    compute = partial(tune_compute, device, testbed.config, seconds=seconds, share=COMPUTE_SHARE)
    cut: Changes = ()
    try:
        try:
            found = compute()
        except TurnFailed as error:
            if not lacks_memory(error) or not (cut := find_batch((), share=COMPUTE_SHARE).changes):
                raise
            words = " ".join(cut)
            tuning.notes.append(f"the batch does not fit at once: the device alone is measured with {words}")
            device.overrides = (*typed, *cut)
            found = compute()
    except TurnFailed as error:
        why = explained(error)
        raise ConfigError(f"this configuration does not train: {why}; run python train.py with it first") from error
    finally:
        device.overrides = typed
    tuning.notes[:0] = found.notes
    tuning.overrides = found.changes
    try:
        batch = find_batch(found.changes, share=BATCH_SHARE)
    except ImagenetOptError as error:
        tuning.notes.append(f"the batch is not tuned: {error}")
        return found.rate
    tuning.parts.append(batch)
    tuning.overrides += batch.changes
    if is_auto and not any(word.startswith("data.batch_size=") for word in batch.changes):
        tuning.overrides += (f"data.batch_size={wanted}",)
    if cut and not batch.changes:  # the tuned batch fits at once, but was timed in micro-batches
        return batch.rate
    return batch.rate or found.rate
