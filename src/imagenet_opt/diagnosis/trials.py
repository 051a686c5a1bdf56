"""Remedies that are tried on a loop in turns with the loop as it is: settings of its DataLoader, a larger batch."""

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor

from imagenet_opt.diagnosis.laps import LEAST_ROUNDS, Batches, Kept, Laps
from imagenet_opt.diagnosis.measurements import Measurements, Trial
from imagenet_opt.diagnosis.source import Source, leaves_of, mapped
from imagenet_opt.diagnosis.tune import AHEAD, Sweep, enough
from imagenet_opt.errors import named_first_line
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.measure.stats.verdict import LEAST_GAIN

_ROUNDS = 5
_IN_SWEEP = 0.65
"""Share of the time after which the sweep of workers ends."""
_AT_MOST = 2.0
"""Times the time for all experiments, which a trial of a slow loop may take."""
_TURN = 4  # batches of a trial in a round
_LARGER = 4
"""Times as many samples in a batch, to see whether a step costs the same with them."""
_NEARLY = 1.1  # a loop that takes this many times its step at most may be limited by the step


def trials(laps: Laps, source: Source) -> Batches:
    """All remedies that may help, by what was measured."""
    if laps.measured.num_workers is not None:
        found = list(remedies(laps.measured, _swept(laps, source)))
        for number, settings in enumerate(found):
            seconds = laps.deadline.left() / (len(found) - number)
            yield from _try(laps, source, settings, seconds, len(found))
    yield from _larger_batch(laps)


def _swept(laps: Laps, source: Source) -> Sweep:
    """The loader alone with other numbers of workers, if it slows the loop down."""
    measured, cpus = laps.measured, laps.measured.usable_cpus
    sweep = Sweep(laps.loader, batch_bytes=measured.batch_bytes, worker_bytes=source.worker_bytes())
    sweep.seconds[measured.num_workers or 0] = median(measured.drained)
    if measured.headroom.ratio >= LEAST_GAIN:
        waits = measured.mean_parts.waiting > measured.mean_parts.total / 2
        # Beside other programs, workers that compute on more CPUs than there are only take these from them.
        most = 8 if waits else cpus if measured.others_use_cpus else 2 * cpus
        counts = {count for count in (0, 1, 2, 4, 8, cpus) if count <= max(most, cpus)}
        sweep.run(sorted(counts, key=lambda count: abs(count - cpus)), laps.deadline, _IN_SWEEP)
        measured.failed |= sweep.failed
        if not measured.lines:
            measured.lines, measured.decoding = sweep.lines, sweep.decoding
    measured.workers = sweep.seconds
    laps.note()
    return sweep


def remedies(measured: Measurements, sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Settings of the DataLoader that may help, by what was measured."""
    step, now = measured.step, measured.num_workers or 0
    loops = {count: max(step, load) if count else step + load for count, load in measured.workers.items()}
    count = enough(loops)
    if count != now and loops[count] * LEAST_GAIN < measured.steady:
        yield {"num_workers": count}
    if now and not measured.persistent_workers and measured.start > (LEAST_GAIN - 1) * measured.steady:
        yield {"persistent_workers": True}
    factor = 4 * (measured.prefetch_factor or AHEAD)
    if now and measured.is_uneven and sweep.most_workers(factor) >= now:
        yield {"prefetch_factor": factor}
    if measured.on_gpu and not measured.pin_memory:
        yield {"pin_memory": True}


def _try(laps: Laps, source: Source, settings: dict[str, Any], seconds: float, num_trials: int) -> Batches:
    """Steps with and without a remedy in turns, for about so many seconds. num_trials: of this loop."""
    trial = Trial(", ".join(f"{key}={value}" for key, value in settings.items()), settings, num_trials=num_trials)
    deadline, needed = Deadline(seconds), LEAST_ROUNDS * 2 * (_TURN + laps.lag + source.ahead)
    if laps.deadline.left(_AT_MOST) < needed * laps.measured.steady:
        laps.measured.failed[trial.name] = "there is no time"
        return
    laps.measured.trials.append(trial)
    try:
        other = laps.source(settings)
        other.next()
        other.pause()
    except Exception as error:
        laps.measured.failed[trial.name] = named_first_line(error)
        return
    turns = [(source, trial.before), (other, trial.after)]
    share = deadline.left() / (2 * _ROUNDS) / 2  # the other half is for batches that were made before
    for number in range(_ROUNDS):
        began = time.monotonic()
        for one, results in turns[:: -1 if number % 2 else 1]:
            one.resume()
            if "persistent_workers" in settings:  # the steps between the starts of epochs cost the same
                yield one.begin_epoch()
                results.append(laps.measured.steady + one.starts[-1] / (laps.measured.batches or 1))
            else:
                results.append((yield from laps.lap(one.next, share, _TURN, one, skip=one.ahead)).seconds)
            one.pause()
        laps.note()
        if number + 1 >= LEAST_ROUNDS and deadline.left() < time.monotonic() - began:
            break
    other.close()


def _larger_batch(laps: Laps) -> Batches:
    """Whether a step on several times as many samples takes longer, if the step is the limit."""
    measured = laps.measured
    size = next((len(leaf) for leaf in leaves_of(laps.kept.batch) if isinstance(leaf, Tensor) and leaf.dim()), 0)
    needed = LEAST_ROUNDS * 2 * _LARGER * measured.step
    if not size or measured.headroom.low > _NEARLY:
        return
    if laps.deadline.left() < needed:
        measured.failed["a larger batch"] = "there is no time"
        return
    laps.may_fail = True

    def repeated(tensor: Tensor) -> Tensor:
        return torch.cat([tensor] * _LARGER) if tensor.dim() and len(tensor) == size else tensor

    larger = Kept(mapped(laps.kept.batch, repeated))
    trial = Trial(f"batch_size={_LARGER * size}", {}, times=_LARGER)
    measured.trials.append(trial)
    for _ in range(LEAST_ROUNDS):
        for one, results in ((laps.kept, trial.before), (larger, trial.after)):
            results.append((yield from laps.lap(one.take, 0.0, 3)).seconds)
