"""Finds the batch size: the largest that fits, and whether larger batches are faster."""

from imagenet_opt.config.build import largest_size
from imagenet_opt.display.table import Column, Table
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import OutOfTime, TurnFailed
from imagenet_opt.model.optimizer import REFERENCE_BATCH
from imagenet_opt.probe.memory import LIMIT_SECONDS, SPARE, MemoryTrials, even_parts, largest_that_fits
from imagenet_opt.tune.climb import UNTRIED, Found
from imagenet_opt.tune.device import Changes, Device

_LEAST_SECONDS = 60.0
"""A trial may always take this long, even with less time left: our choice, above a start and three steps of a GPU."""


def tune_batch(device: Device, kept: Changes, *, wanted: int, most: int, seconds: float, share: float) -> Found:
    """Find the batch size. kept: changes of earlier parts. wanted: the configured batch size. most: the largest to
    try. seconds: of a short turn. share: of the time. Raises OutOfMemory if not one image fits, ConfigError if no batch
    can be tried."""
    config, trial_starts = device.config(kept), list[float]()

    def before(what: str) -> None:
        trial_starts.append(device.deadline.passed)
        if len(trial_starts) > 1:  # the next trial probably takes as long as the last trial
            device.deadline.check(trial_starts[-1] - trial_starts[-2], share)
        device.announce(what)

    trials = MemoryTrials(config, before, lambda: min(LIMIT_SECONDS, max(_LEAST_SECONDS, device.deadline.left(share))))
    fitting, notes = largest_batch(trials, wanted, max(wanted, most))
    changes: Changes = ()
    size, rate = wanted, None
    if fitting < wanted:
        changes, note = in_parts(trials, wanted, fitting)
        notes.append(note)
    elif fitting > wanted:
        size, rate, note = faster_batch(device, kept, wanted, fitting, seconds, share)
        changes = (f"data.batch_size={size}",) if size != wanted else ()
        notes += [note] if note else []
    untried = "" if any(trial.batch > fitting for trial in trials.tried) else "; no larger batch was tried"
    spare = f"with {100 * SPARE:.0f} % of the free memory left over"
    notes += [
        f"{fitting} images fit at {largest_size(config)} px, not compiled, {spare}{untried}",
        f"lr {config.optimizer.lr * size / REFERENCE_BATCH:.3g} for {size} images in one process: "
        f"{config.optimizer.lr:g} per 256 images",
    ]
    lacks_time = "not all batch sizes were tried" if any(note.startswith(UNTRIED) for note in notes) else ""
    return Found(changes, rate, table=_table(trials, notes), lacks_time=lacks_time)


def largest_batch(trials: MemoryTrials, wanted: int, most: int) -> tuple[int, list[str]]:
    """The largest batch known to fit, up to `most`, and up to `wanted` if that does not fit; and notes."""
    try:
        if trials.fits(wanted):
            return max(wanted, trials.largest(start=2 * wanted, most=most, known=wanted)), []
        fitting, notes = trials.largest(start=wanted // 2, most=wanted - 1) if wanted > 1 else 0, list[str]()
    except OutOfTime as error:
        if not trials.tried:
            raise ConfigError(f"no time was left to try whether {wanted} images fit; raise --budget") from error
        fitting = max((trial.batch for trial in trials.tried if trial.peak_gib is not None), default=0)
        notes = [f"{UNTRIED} (other batch sizes)"]
    if not fitting:
        raise trials.nothing_fits()
    return fitting, notes


def in_parts(trials: MemoryTrials, wanted: int, fitting: int) -> tuple[Changes, str]:
    """Changes that keep the wanted batch, in the largest micro-batches that fit; and a note."""
    micro = even_parts(wanted, fitting)
    try:
        micro = largest_that_fits(lambda size: trials.fits(wanted, size), start=micro, most=micro)
    except OutOfTime:
        return (f"model.micro_batch_size={micro}",), f"{UNTRIED} (whether micro-batches of {micro} images fit)"
    if not micro:
        return (), f"batch {wanted} does not fit, not even in micro-batches: lower data.batch_size"
    note = f"batch {wanted} does not fit at once: micro-batches of {micro} images give the same step"
    return (f"model.micro_batch_size={micro}",), note


def faster_batch(
    device: Device, kept: Changes, wanted: int, fitting: int, seconds: float, share: float
) -> tuple[int, float | None, str]:
    """The wanted batch, or a larger one whose verdict is "faster"; its images per second, and a note if none was
    measured."""
    sizes = sorted({wanted, min(2 * wanted, fitting), fitting})
    settings = {f"batch {num}": (*kept, f"data.batch_size={num}") for num in sizes}
    try:
        climbed = device.fastest("larger batches", settings, seconds, share)
    except (TurnFailed, OutOfTime) as error:
        return wanted, None, f"larger batches are not compared: {str(error) or 'no time was left'}"
    return int(climbed.best.removeprefix("batch ")), climbed.rate, ""


def _table(trials: MemoryTrials, notes: list[str]) -> Table:
    rows = []
    for trial in trials.tried:
        verdict = "fits" if trial.peak_gib is not None else trial.why or "out of memory"
        rows.append((str(trial.batch), "all" if trial.micro is None else str(trial.micro), trial.peak_gib, verdict))
    columns = (Column("batch"), Column("at once"), Column("peak GiB", "{:.2f}"), Column("verdict"))
    return Table("what fits into the memory", columns, tuple(rows), tuple(notes))
