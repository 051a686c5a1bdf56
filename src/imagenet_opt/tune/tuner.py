"""Tunes everything in order: the device alone, the batch size, the loader."""

import sys
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from lightning.pytorch import seed_everything
from omegaconf import DictConfig

from imagenet_opt.config.compose import composed
from imagenet_opt.display.progress import announced
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure.stats.rounds import Deadline, TurnFailed
from imagenet_opt.model.optimizer import REFERENCE_BATCH
from imagenet_opt.probe.memory import explained, lacks_memory, most_images, num_train
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.training.auto_batch import AUTO
from imagenet_opt.training.quiet import quiet
from imagenet_opt.tune.batch import Batch, tune_batch
from imagenet_opt.tune.device import Compute, tune_compute
from imagenet_opt.tune.device_turns import Changes, Turns
from imagenet_opt.tune.loader import Loader, tune_loader

COMPUTE_SHARE, BATCH_SHARE = 0.6, 0.85
"""Shares of the budget for the device, and for device and batch together; the loader has the remaining time."""
_TURNS = 80
"""Number of turns that should fit into the budget, not counting the start of processes."""
_LONGEST_TURN, _SHORTEST_TURN = 8.0, 0.3


@dataclass
class Tuning:
    """Results. simulated: name of the simulated accelerator, or None. overrides: settings to change. budget_seconds:
    the requested time; seconds: the time used."""

    config: DictConfig
    simulated: str | None
    turns: Turns | None = None
    compute: Compute | None = None
    batch: Batch | None = None
    loader: Loader | None = None
    overrides: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    budget_seconds: float = 0.0
    seconds: float = 0.0


def tune(overrides: tuple[str, ...], budget_seconds: float) -> Tuning:
    """Measure within the budget, not counting start-up. Raises ImagenetOptError."""
    quiet()
    config = composed(overrides)
    rehearsal = config.callbacks.get("rehearsal")
    simulated = None if rehearsal is None else str(rehearsal.name)
    tuning = Tuning(config, simulated, budget_seconds=budget_seconds)
    if rehearsal is None and not torch.cuda.is_available():
        print("no GPU here: the network runs on the CPU; rehearse=a10g simulates one instead", file=sys.stderr)
    seed_everything(config.seed, verbose=False)
    base, testbed = _with_number(overrides, config)
    deadline = Deadline(budget_seconds)
    seconds = min(_LONGEST_TURN, max(_SHORTEST_TURN, budget_seconds / _TURNS))
    with announced(None, budget_seconds=budget_seconds) as announce:
        if rehearsal is None:
            num_classes = testbed.config.model.num_classes
            turns = tuning.turns = Turns((*base, *_settled(testbed)), num_classes, deadline, announce)
            rate = _tune_device(tuning, turns, testbed, seconds)
        else:
            tuning.notes.append(f"simulated {simulated}: tuning precision, compilation and batch needs the real device")
            rate = testbed.rated
        if tuning.overrides:
            testbed = Testbed(composed((*base, *tuning.overrides)))
        try:
            tuning.loader = tune_loader(testbed, deadline, announce, device_rate=rate, seconds=seconds)
            tuning.overrides += tuning.loader.changes
        except TurnFailed as error:
            tuning.notes.append(f"the loader is not tuned: {error}")
    tuning.seconds = deadline.passed
    return tuning


def _with_number(overrides: tuple[str, ...], config: DictConfig) -> tuple[tuple[str, ...], Testbed]:
    """Overrides with a batch size in place of data.batch_size=auto, not larger than the data allows; their Testbed."""
    if config.data.batch_size != AUTO:
        return overrides, Testbed(config)
    testbed = Testbed(composed((*overrides, "data.batch_size=1")))
    start = min(REFERENCE_BATCH, most_images(num_train(testbed.data)))
    overrides = (*overrides, f"data.batch_size={start}")
    return overrides, Testbed(composed(overrides))


def _settled(testbed: Testbed) -> tuple[str, ...]:
    """What compile=auto and cuda_graph=auto mean in a whole training."""
    acceleration = testbed.config.callbacks.get("acceleration", {})
    chosen = {key: acceleration[key] for key in ("compile", "cuda_graph") if key in acceleration}
    return tuple(f"callbacks.acceleration.{key}={str(value).lower()}" for key, value in chosen.items())


def _tune_device(tuning: Tuning, turns: Turns, testbed: Testbed, seconds: float) -> float | None:
    """Images per second that the tuned device needs; None if unknown."""
    try:
        compute = tuning.compute = _compute(tuning, turns, testbed, seconds)
    except TurnFailed as error:
        why = explained(error)
        raise ConfigError(f"this configuration does not train: {why}; run python train.py with it first") from error
    tuning.overrides = compute.changes
    try:
        batch = tuning.batch = _batch(tuning, turns, compute.changes, testbed, seconds, BATCH_SHARE)
    except ImagenetOptError as error:
        tuning.notes.append(f"the batch is not tuned: {error}")
        return compute.rate
    tuning.overrides += batch.changes
    if tuning.config.data.batch_size == AUTO and batch.size == testbed.loading.batch_size:
        tuning.overrides += (f"data.batch_size={batch.size}",)
    if compute.cut and not batch.changes:  # the tuned batch fits at once, but was timed in micro-batches
        return batch.rate
    return batch.rate or compute.rate


def _compute(tuning: Tuning, turns: Turns, testbed: Testbed, seconds: float) -> Compute:
    """Tune the device; with micro-batches if the configured batch does not fit at once. Raises TurnFailed,
    ImagenetOptError."""
    tune = partial(tune_compute, turns, testbed.config, testbed.device, seconds=seconds, share=COMPUTE_SHARE)
    overrides = turns.overrides
    try:
        return tune()
    except TurnFailed as error:
        if not lacks_memory(error) or not (cut := _batch(tuning, turns, (), testbed, seconds, COMPUTE_SHARE).changes):
            raise
    tuning.notes.append(f"the batch does not fit at once: the device alone is measured with {' '.join(cut)}")
    turns.overrides = (*overrides, *cut)
    try:
        return replace(tune(), cut=cut)
    finally:
        turns.overrides = overrides


def _batch(tuning: Tuning, turns: Turns, kept: Changes, testbed: Testbed, seconds: float, share: float) -> Batch:
    """Tune the batch; a batch that follows from data.global_batch_size does not grow."""
    wanted = testbed.loading.batch_size
    grows = tuning.config.data.get("global_batch_size") is None
    most = most_images(num_train(testbed.data)) if grows else wanted
    return tune_batch(turns, kept, wanted=wanted, most=most, seconds=seconds, share=share)
