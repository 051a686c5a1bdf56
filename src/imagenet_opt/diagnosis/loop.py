"""Experiments on a loop over any loader: as it is, with a batch that is kept, the loader alone, remedies in turns."""

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from copy import copy
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from imagenet_opt import machine
from imagenet_opt.diagnosis.cause import judge
from imagenet_opt.diagnosis.measurements import LEAST_SECONDS, Measurements, Trial
from imagenet_opt.diagnosis.source import NoBatch, Source, leaves_of, mapped, most_workers
from imagenet_opt.diagnosis.verdict import Diagnosis
from imagenet_opt.errors import ConfigError, DataError, TrainingError, named_first_line
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.measure.stats.verdict import LEAST_GAIN
from imagenet_opt.measure.telemetry.host_syncs import HostSyncs
from imagenet_opt.measure.telemetry.proc_counters import Neighbours, busy_seconds_of_descendants
from imagenet_opt.measure.telemetry.thread_time import sees_run_queue
from imagenet_opt.measure.telemetry.torch_profile import kernel_seconds
from imagenet_opt.private_api import TorchDispatchMode, version

_ROUNDS, _LEAST_ROUNDS = 5, 3
_IN_ROUNDS, _IN_SWEEP = 0.45, 0.65
"""Shares of the time after which the rounds, and the sweep of workers, end; the rest is for trials."""
_TURN = 4  # batches of a trial in a round
_LARGER = 4
"""Times as many samples in a batch, to see whether a step costs the same with them."""
_NEARLY = 1.1  # a loop that takes this many times its step at most may be limited by the step

Batches = Generator[Any, None, Any]
"""Yields batches, on which the caller runs the step."""


def diagnose(loader: Any, step: Callable[[Any], Any], seconds: float = 60.0) -> Diagnosis:
    """Find by experiment what limits a loop `for batch in loader: step(batch)`, and what a remedy would gain.

    loader: any iterable of batches; a DataLoader of torch is taken apart further. step: trains on a batch; it runs some
    hundred times, often on one batch, so its weights are not to be used afterwards. seconds: of all experiments; slow
    steps and loaders take up to about twice as long, because each experiment needs a few batches.

    Raises DataError or TrainingError if loader or step fail, end or hang before the loop can be judged; ConfigError for
    too few seconds.
    """
    if not seconds >= LEAST_SECONDS:
        raise ConfigError(f"seconds={seconds} is too short for the experiments; expected {LEAST_SECONDS:g} or more")
    examination, place = Examination(loader, seconds=seconds), "loader"
    measured, batches = examination.measured, examination.batches()
    try:
        with _alarm(2 * seconds + 30):
            for batch in batches:
                place = "step"
                step(batch)
                place = "loader"
    except (Exception, _Rings) as error:
        hangs = f"did not end within {2 * seconds + 30:.0f} s"
        measured.ended = f"the {place} {hangs if isinstance(error, _Rings) else f'raised {named_first_line(error)}'}"
    finally:
        batches.close()
    if examination.may_fail:
        measured.ended = ""
    if not measured.is_enough:
        raise (TrainingError if place == "step" else DataError)(measured.too_little)
    return judge(measured)


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


class Examination:
    """The experiments on a loop, as an iterator of batches: whoever takes a batch runs the step before the next.

    note: called after each experiment. lag: batches that the caller takes before the step of the first. may_fail:
    whether a step that fails now says nothing about the loop.
    """

    def __init__(self, loader: Any, *, seconds: float, lag: int = 1, note: Callable[[], None] = lambda: None) -> None:
        self.loader, self.seconds, self.lag, self.note = loader, seconds, lag, note
        self.measured = Measurements(
            kind=type(loader).__name__,
            usable_cpus=machine.usable_cpus(),
            sees_run_queue=sees_run_queue(),
            on_gpu=torch.cuda.is_available(),
        )
        if isinstance(loader, DataLoader):
            for name in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory"):
                setattr(self.measured, name, getattr(loader, name))
        self.may_fail = self._interrupted = False
        self._sources: list[Source] = []

    def interrupt(self) -> None:
        """The caller did something else than a step since its last batch: the time since then does not count."""
        self._interrupted = True

    def batches(self) -> Batches:
        self._deadline = Deadline(self.seconds)
        try:
            source, first = self._open()
            self._kept = _Kept(first)
            yield first
            yield from self._rounds(source)
            yield from self._look_at_step()
            if self.measured.num_workers is not None:
                self._sweep(source)
                for name, settings in self._remedies(source):
                    yield from self._try(source, Trial(name, settings))
            yield from self._larger_batch()
        except NoBatch:
            self.measured.ended = (
                "the loader gave no further batch" if self.measured.starts else "the loader gave no batch"
            )
        finally:
            for opened in self._sources:
                opened.close()

    def _open(self) -> tuple[Source, Any]:
        """The loader as it is, timed if possible, and its first batch."""
        measured = self.measured
        source = self._source({} if measured.num_workers is not None else None)
        try:
            first = source.next()
        except Exception as error:
            if not source.is_timed or isinstance(error, NoBatch):
                raise
            measured.failed["times of samples"] = named_first_line(error)  # or the user's mistake, which comes again
            source.close()
            source = self._sources[0] = Source(self.loader)
            first = source.next()
        leaves = leaves_of(first)
        measured.batch_bytes, measured.num_leaves = sum(getattr(leaf, "nbytes", 0) for leaf in leaves), len(leaves)
        measured.starts, measured.parts, measured.lines = source.starts, source.parts, source.lines  # these grow
        measured.receiving = source.receiving
        try:
            measured.batches = len(self.loader)
        except (TypeError, AttributeError, NotImplementedError):
            measured.batches = None
        return source, first

    def _source(self, settings: dict[str, Any] | None) -> Source:
        self._sources.append(Source(self.loader, settings))
        return self._sources[-1]

    def _lap(self, take: Callable[[], Any], seconds: float, least: int, source: Source | None = None) -> Batches:
        """Steps on the batches of `take`. Returns (seconds per batch, seconds of it outside of the loader)."""
        for _ in range(self.lag):
            yield take()
        passed, body, num = 0.0, 0.0, 0
        _synchronize()
        while num < least or passed < seconds:
            self._interrupted, starting, began = False, source.starting if source else 0.0, time.perf_counter()
            batch = take()
            given = time.perf_counter()
            yield batch
            ended = time.perf_counter()
            if not self._interrupted:
                started = source.starting - starting if source else 0.0
                passed, body, num = passed + ended - began - started, body + ended - given, num + 1
        _synchronize()  # the device ends the steps that it has been given
        passed += time.perf_counter() - ended
        return passed / num, body / num

    def _rounds(self, source: Source) -> Batches:
        """In each round the kept batch, the loader alone, and the loop as it is."""
        measured, share = self.measured, _IN_ROUNDS * self.seconds / (3 * _ROUNDS)
        others = Neighbours()
        for number in range(_ROUNDS):
            began = time.monotonic()
            source.pause()
            kept, _ = yield from self._lap(self._kept.take, share, 2)
            busy, at = busy_seconds_of_descendants(), time.monotonic()
            drained = source.drain(share, limit=3 * share)
            measured.loader_cpus = (busy_seconds_of_descendants() - busy) / (time.monotonic() - at)
            source.in_loop = True
            loop, body = yield from self._lap(source.next, share, max(3, source.num_workers), source)
            source.in_loop = False
            for values, value in ((measured.kept, kept), (measured.drained, drained), (measured.loop, loop)):
                values.append(value)
            measured.body.append(body)
            for name in ("num_samples", "decoding", "pixels"):
                setattr(measured, name, getattr(source, name))
            if measured.batches is None and source.lengths:
                measured.batches = source.lengths[0]
            self.note()
            taken = time.monotonic() - began
            if self._deadline.left(_IN_ROUNDS if number + 1 >= _LEAST_ROUNDS else 1.0) < taken and measured.is_enough:
                break
        source.pause()
        measured.others_cpus = others.stop()

    def _look_at_step(self) -> Batches:
        """Count where the host waits for the device, operations, and the time in which a GPU computes."""
        measured, num = self.measured, 2
        if self._deadline.left() < 8 * measured.step:
            return
        if measured.on_gpu:
            on_device = _Kept(mapped(self._kept.batch, lambda tensor: tensor.cuda()))
            for _ in range(_LEAST_ROUNDS):
                measured.on_device.append((yield from self._lap(on_device.take, 0.02 * self.seconds, 3))[0])
        with HostSyncs() as syncs, _Operations() as operations:
            for _ in range(num):
                yield self._kept.take()
        places = ((f"{wait.operation} at {wait.place}", count) for wait, count in syncs.counts.most_common(5))
        measured.waits = {place: count / num for place, count in places}
        measured.num_ops = operations.num / num
        if measured.on_gpu:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for _ in range(num):
                    yield self._kept.take()
                _synchronize()
            measured.kernel_seconds = kernel_seconds(profile, num_steps=num)

    def _sweep(self, source: Source) -> None:
        """The loader alone with other numbers of workers, if it slows the loop down."""
        measured, cpus = self.measured, self.measured.usable_cpus
        now = measured.num_workers or 0
        measured.workers[now] = median(measured.drained)
        if measured.headroom.ratio < LEAST_GAIN:
            return
        waits = measured.mean_parts.waiting > measured.mean_parts.total / 2
        most = min(self._most_workers(source, measured.prefetch_factor or 2), max(2, 8 if waits else 0, 2 * cpus))
        counts = {count for count in (0, 1, 2, 4, 8, cpus) if count <= most} - {now}
        share = (_IN_SWEEP - _IN_ROUNDS) * self.seconds / max(1, len(counts))
        for count in sorted(counts, key=lambda count: abs(count - cpus)):
            if self._deadline.left(_IN_SWEEP) <= 0 and len(measured.workers) > 1:
                break
            try:
                other = self._source({"num_workers": count})
                other.next()
                measured.workers[count] = other.drain(share / 2, limit=2 * share)
                if not measured.lines:  # without workers nobody looks at the lines
                    measured.lines, measured.decoding = other.lines, other.decoding
                other.close()
            except Exception as error:
                measured.failed[f"num_workers={count}"] = named_first_line(error)
            self.note()

    def _most_workers(self, source: Source, prefetch_factor: int) -> int:
        return most_workers(self.measured.batch_bytes, source.worker_bytes(), prefetch_factor)

    def _remedies(self, source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
        """Settings of the DataLoader that may help, by what was measured."""
        measured, step = self.measured, self.measured.step
        now = measured.num_workers or 0
        loops = {count: max(step, load) if count else step + load for count, load in measured.workers.items()}
        count = min(count for count, loop in loops.items() if loop <= LEAST_GAIN * min(loops.values()))
        if count != now and loops[count] * LEAST_GAIN < measured.steady:
            yield f"num_workers={count}", {"num_workers": count}
        if now and not measured.persistent_workers and measured.start > (LEAST_GAIN - 1) * measured.steady:
            yield "persistent_workers=True", {"persistent_workers": True}
        factor = 4 * (measured.prefetch_factor or 2)
        is_ample = max(step, median(measured.drained)) * LEAST_GAIN < measured.steady
        if now and is_ample and measured.is_held_up and self._most_workers(source, factor) >= now:
            yield f"prefetch_factor={factor}", {"prefetch_factor": factor}
        if measured.on_gpu and not measured.pin_memory:
            yield "pin_memory=True", {"pin_memory": True}

    def _try(self, source: Source, trial: Trial) -> Batches:
        """Steps with and without the remedy, in turns."""
        self.measured.trials.append(trial)
        try:
            other = self._source(trial.settings)
            other.next()
        except Exception as error:
            self.measured.failed[trial.name] = named_first_line(error)
            return
        turns = [(source, trial.before), (other, trial.after)]
        for number in range(_ROUNDS):
            began = time.monotonic()
            for one, results in turns[:: -1 if number % 2 else 1]:
                one.resume()
                if "persistent_workers" in trial.settings:  # the steps between the starts of epochs cost the same
                    yield one.begin_epoch()
                    results.append(self.measured.seconds_with(one.starts[-1]))
                else:
                    one.use_up()
                    results.append((yield from self._lap(one.next, 0.0, max(_TURN, one.num_workers), one))[0])
                one.pause()
            self.note()
            if number + 1 >= _LEAST_ROUNDS and self._deadline.left() < time.monotonic() - began:
                break
        other.close()

    def _larger_batch(self) -> Batches:
        """Whether a step on several times as many samples takes longer, if the step is the limit."""
        measured = self.measured
        size = next((len(leaf) for leaf in leaves_of(self._kept.batch) if isinstance(leaf, Tensor) and leaf.dim()), 0)
        needed = _LEAST_ROUNDS * 2 * _LARGER * measured.step
        if not size or measured.headroom.ratio > _NEARLY or self._deadline.left() < needed:
            return
        self.may_fail = True

        def repeated(tensor: Tensor) -> Tensor:
            return torch.cat([tensor] * _LARGER) if tensor.dim() and len(tensor) == size else tensor

        larger = _Kept(mapped(self._kept.batch, repeated))
        trial = Trial(f"batch_size={_LARGER * size}", {}, times=_LARGER)
        measured.trials.append(trial)
        for _ in range(_LEAST_ROUNDS):
            for one, results in ((self._kept, trial.before), (larger, trial.after)):
                results.append((yield from self._lap(one.take, 0.0, 3))[0])


class _Kept:
    """A batch for many steps. If a step changes its tensors in place, each step gets a copy."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self._tensors = [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor)]
        self._versions = [version(tensor) for tensor in self._tensors]

    def take(self) -> Any:
        if [version(tensor) for tensor in self._tensors] != self._versions:
            return mapped(self.batch, torch.clone)
        return copy(self.batch) if isinstance(self.batch, dict | list) else self.batch


class _Operations(TorchDispatchMode):
    """Counts operations, those of backward too."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += 1
        return func(*args, **(kwargs or {}))


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
