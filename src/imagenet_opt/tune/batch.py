"""Finds the batch size: the largest that fits, and whether larger batches are faster."""

from dataclasses import dataclass, field

from imagenet_opt.config.build import largest_size
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import OutOfTime, TurnFailed
from imagenet_opt.model.optimizer import REFERENCE_BATCH
from imagenet_opt.probe.memory import LIMIT_SECONDS, SPARE, MemoryTrials, Trial, even_parts, largest_that_fits
from imagenet_opt.tune.device_turns import Changes, Turns

_LEAST_SECONDS = 60.0
"""A trial may always take this long, even with less time left: our choice, above a start and three steps of a GPU."""


@dataclass
class Batch:
    """size: images per step. fitting: the largest size known to fit at once. rate: images per second, if measured."""

    size: int
    fitting: int = 0
    changes: Changes = ()
    tried: list[Trial] = field(default_factory=list)
    rate: float | None = None
    notes: list[str] = field(default_factory=list)


def tune_batch(turns: Turns, kept: Changes, *, wanted: int, most: int, seconds: float, share: float) -> Batch:
    """Find the batch size. kept: changes of earlier parts. wanted: the configured batch size. most: the largest to
    try. seconds: of a short turn. share: of the time. Raises OutOfMemory if not one image fits, ConfigError if no batch
    can be tried."""
    config, trial_starts = turns.config(kept), list[float]()

    def before(what: str) -> None:
        trial_starts.append(turns.deadline.passed)
        if len(trial_starts) > 1:  # the next trial probably takes as long as the last trial
            turns.deadline.check(trial_starts[-1] - trial_starts[-2], share)
        turns.announce(what)

    def limit() -> float:
        return min(LIMIT_SECONDS, max(_LEAST_SECONDS, turns.deadline.left(share)))

    trials = MemoryTrials(config, before, limit)
    batch = Batch(wanted, tried=trials.tried)
    _fit(batch, trials, wanted, max(wanted, most))
    if batch.fitting > wanted:
        _grow(batch, turns, kept, seconds, share)
    side, lr = largest_size(config), config.optimizer.lr
    larger_was_tried = any(trial.batch > batch.fitting for trial in batch.tried)
    batch.notes += [
        f"{batch.fitting} images fit at {side} px, not compiled, with {100 * SPARE:.0f} % of the free memory left over"
        + ("" if larger_was_tried else "; no larger batch was tried"),
        f"lr {lr * batch.size / REFERENCE_BATCH:.3g} for {batch.size} images in one process: {lr:g} per 256 images",
    ]
    return batch


def _fit(batch: Batch, trials: MemoryTrials, wanted: int, most: int) -> None:
    """Set the largest batch up to `most`, and micro-batches if the wanted batch does not fit at once."""
    try:
        if trials.fits(wanted):
            batch.fitting = wanted
            batch.fitting = max(wanted, trials.largest(start=2 * wanted, most=most, known=wanted))
        elif wanted > 1:
            batch.fitting = trials.largest(start=wanted // 2, most=wanted - 1)
    except OutOfTime as error:
        if not trials.tried:
            raise ConfigError(f"no time was left to try whether {wanted} images fit; raise --budget") from error
        batch.fitting = max((trial.batch for trial in trials.tried if trial.peak_gib is not None), default=0)
        batch.notes.append("not tried: budget (other batch sizes)")
    if not batch.fitting:
        raise trials.nothing_fits()
    if batch.fitting < wanted:
        _cut(batch, trials, wanted)


def _cut(batch: Batch, trials: MemoryTrials, wanted: int) -> None:
    """Keep the wanted batch, in the largest micro-batches that fit."""
    micro = even_parts(wanted, batch.fitting)
    try:
        micro = largest_that_fits(lambda size: trials.fits(wanted, size), start=micro, most=micro)
    except OutOfTime:
        batch.notes.append("not tried: budget (whether these micro-batches fit)")
    if micro:
        batch.changes = (f"model.micro_batch_size={micro}",)
        batch.notes.append(f"batch {wanted} does not fit at once: micro-batches of {micro} images give the same step")
    else:
        batch.notes.append(f"batch {wanted} does not fit, not even in micro-batches: lower data.batch_size")


def _grow(batch: Batch, turns: Turns, kept: Changes, seconds: float, share: float) -> None:
    """Choose a larger batch if its verdict is "faster"."""
    configured = batch.size
    sizes = sorted({min(2 * configured, batch.fitting), batch.fitting})
    settings: dict[str, Changes] = {f"batch {num}": (*kept, f"data.batch_size={num}") for num in (configured, *sizes)}
    try:
        climbed = turns.fastest("larger batches", settings, seconds, share)
    except (TurnFailed, OutOfTime) as error:
        batch.notes.append(f"larger batches are not compared: {str(error) or 'no time was left'}")
        return
    batch.rate = climbed.rate(climbed.best)
    batch.size = int(climbed.best.removeprefix("batch "))
    if batch.size != configured:
        batch.changes = (f"data.batch_size={batch.size}",)
