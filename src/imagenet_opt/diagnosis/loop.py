"""Experiments on a loop over any loader: as it is, with a batch that is kept, the loader alone, remedies in turns."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from imagenet_opt.diagnosis.cause import conclude
from imagenet_opt.diagnosis.laps import LEAST_ROUNDS, Batches, Kept, Laps, synchronize
from imagenet_opt.diagnosis.measurements import check_seconds
from imagenet_opt.diagnosis.source import NoBatch, Source, leaves_of, mapped, num_bytes
from imagenet_opt.diagnosis.trials import trials
from imagenet_opt.diagnosis.verdict import Diagnosis
from imagenet_opt.errors import DataError, TrainingError, named_first_line
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.measure.telemetry.host_syncs import HostSyncs
from imagenet_opt.measure.telemetry.proc_counters import (
    Neighbours,
    busy_seconds_of_descendants,
    queued_seconds_of_descendants,
)
from imagenet_opt.measure.telemetry.torch_profile import kernel_seconds
from imagenet_opt.private_api import TorchDispatchMode

_ROUNDS = 5
_IN_ROUNDS = 0.45
"""Share of the time after which the rounds end; the rest is for trials."""


def diagnose(loader: Any, step: Callable[[Any], Any], seconds: float = 60.0) -> Diagnosis:
    """Find by experiment what limits a loop `for batch in loader: step(batch)`, and what a remedy would gain.

    loader: any iterable of batches; a DataLoader of torch is taken apart further. step: trains on a batch; it runs some
    hundred times, often on one batch, so its weights are not to be used afterwards. seconds: of all experiments; slow
    steps and loaders take up to about twice as long, because each experiment needs a few batches.

    Raises DataError or TrainingError if loader or step fail, end or hang before the loop can be judged; ConfigError for
    too few seconds.
    """
    check_seconds(seconds)
    examination, place = Examination(loader, seconds=seconds), "loader"
    batches, ended, limit = examination.batches(), "", 2 * seconds + 30
    try:
        with _alarm(limit):
            for batch in batches:
                place = "step"
                step(batch)
                place = "loader"
    except (Exception, _Rings) as error:
        ended = f"the {place} raised {named_first_line(error)}"
        if isinstance(error, _Rings):
            ended = f"the {place} had not ended after {limit:.0f} s; if it is slow, raise seconds={seconds:g}"
    finally:
        batches.close()
    ended = "" if examination.may_fail else ended
    return conclude(examination.measured, ended, TrainingError if place == "step" else DataError, "")


class _Rings(BaseException):
    """Time is up."""


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise _Rings in the main thread after this time, unless the program has an alarm of its own."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
        yield
        return

    def ring(*_: Any) -> None:
        raise _Rings

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


class Examination(Laps):
    """The experiments on a loop, as an iterator of batches: whoever takes a batch runs the step before the next."""

    def __init__(self, loader: Any, *, seconds: float, lag: int = 1, note: Callable[[], None] = lambda: None) -> None:
        super().__init__(loader, lag=lag, note=note)
        self.seconds = seconds

    def batches(self) -> Batches:
        self.deadline = Deadline(self.seconds)
        try:
            source, first = self._open()
            self.kept = Kept(first)
            yield first
            yield from self._rounds(source)
            yield from self._look_at_step()
            yield from trials(self, source)
        except NoBatch:
            self.measured.ended = f"the loader gave no {'further ' if self.measured.starts else ''}batch"
        finally:
            for opened in self.sources:
                opened.close()

    def _open(self) -> tuple[Source, Any]:
        """The loader as it is, timed if possible, and its first batch."""
        measured, is_torchs = self.measured, isinstance(self.loader, DataLoader)
        if is_torchs:
            for name in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory"):
                setattr(measured, name, getattr(self.loader, name))
        source = self.source({} if is_torchs else None)
        try:
            first = source.next()
        except Exception as error:
            if not source.is_timed or isinstance(error, NoBatch):
                raise
            measured.failed["times of samples"] = named_first_line(error)  # or the user's mistake, which comes again
            source.close()
            source = self.sources[0] = Source(self.loader)
            first = source.next()
        measured.batch_bytes, measured.num_leaves = num_bytes(first), len(leaves_of(first))
        measured.starts, measured.parts = source.starts, source.parts  # these grow
        measured.receiving = source.receiving
        self.note()
        try:
            measured.batches = len(self.loader)
        except (TypeError, AttributeError, NotImplementedError):
            measured.batches = None
        return source, first

    def _rounds(self, source: Source) -> Batches:
        """In each round the kept batch, the loader alone, and the loop as it is."""
        measured, share = self.measured, _IN_ROUNDS * self.seconds / (3 * _ROUNDS)
        others = Neighbours()
        for number in range(_ROUNDS):
            began = time.monotonic()
            source.pause()
            kept = yield from self.lap(self.kept.take, share, 2)
            busy, queued, at = busy_seconds_of_descendants(), queued_seconds_of_descendants(), time.monotonic()
            drained = source.drain(share, limit=3 * share)
            taken = time.monotonic() - at
            measured.loader_cpus = (busy_seconds_of_descendants() - busy) / taken
            measured.loader_queued = max(0.0, queued_seconds_of_descendants() - queued) / taken
            source.in_loop = True
            loop = yield from self.lap(source.next, share, 3, source)
            source.in_loop = False
            measured.kept.append(kept.seconds)
            measured.step_cpu.append(kept.cpu)
            measured.drained.append(drained)
            measured.loop.append(loop.seconds)
            measured.body.append(loop.body)
            measured.lines = dict(source.lines)
            for name in ("num_samples", "decoding", "pixels"):
                setattr(measured, name, getattr(source, name))
            if measured.batches is None and source.lengths:
                measured.batches = source.lengths[0]
            self.note()
            taken = time.monotonic() - began
            if self.deadline.left(_IN_ROUNDS if number + 1 >= LEAST_ROUNDS else 1.0) < taken and measured.is_enough:
                break
        source.pause()
        measured.others_cpus = others.stop()

    def _look_at_step(self) -> Batches:
        """Count where the host waits for the device, operations, and the time in which a GPU computes."""
        measured, num = self.measured, 2
        if self.deadline.left() < 8 * measured.step:
            return
        if measured.on_gpu:
            on_device = Kept(mapped(self.kept.batch, lambda tensor: tensor.cuda()))
            for _ in range(LEAST_ROUNDS):
                measured.on_device.append((yield from self.lap(on_device.take, 0.02 * self.seconds, 3)).seconds)
        with HostSyncs() as syncs, _Operations() as operations:
            for _ in range(num):
                yield self.kept.take()
        places = ((f"{wait.operation} at {wait.place}", count) for wait, count in syncs.counts.most_common(5))
        measured.waits = {place: count / num for place, count in places}
        measured.num_ops = operations.num / num
        if measured.on_gpu:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for _ in range(num):
                    yield self.kept.take()
                synchronize()
            measured.kernel_seconds = kernel_seconds(profile, num_steps=num)


class _Operations(TorchDispatchMode):
    """Counts operations, those of backward too."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += 1
        return func(*args, **(kwargs or {}))
