"""Laps of a loop: steps on batches that are given to whoever runs the step, timed."""

import time
from collections.abc import Callable, Generator
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from imagenet_opt import machine
from imagenet_opt.diagnosis.measurements import Measurements
from imagenet_opt.diagnosis.source import Source, leaves_of, mapped
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.measure.telemetry.thread_time import sees_run_queue, thread_time
from imagenet_opt.private_api import version

LEAST_ROUNDS = 3
Batches = Generator[Any, None, Any]
"""Yields batches, on which the caller runs the step."""


class Lap(NamedTuple):
    """Seconds per batch. body: outside of the loader. cpu: computed by the main thread."""

    seconds: float
    body: float
    cpu: float


class Laps:
    """note: called after each experiment. lag: batches that the caller takes before the step of the first. may_fail:
    whether a step that fails now says nothing about the loop. kept: a batch for many steps. deadline: of all
    experiments."""

    kept: "Kept"
    deadline: Deadline

    def __init__(self, loader: Any, *, lag: int, note: Callable[[], None]) -> None:
        self.loader, self.lag, self.note = loader, lag, note
        self.measured = Measurements(
            kind=type(loader).__name__,
            usable_cpus=machine.usable_cpus(),
            sees_run_queue=sees_run_queue(),
            on_gpu=torch.cuda.is_available(),
        )
        self.may_fail = self._interrupted = False
        self.sources: list[Source] = []

    def source(self, settings: dict[str, Any] | None) -> Source:
        self.sources.append(Source(self.loader, settings))
        return self.sources[-1]

    def interrupt(self) -> None:
        """The caller did something else than a step since its last batch: the time since then does not count."""
        self._interrupted = True

    def lap(
        self, take: Callable[[], Any], seconds: float, least: int, source: Source | None = None, skip: int = 0
    ) -> Batches:
        """Steps on the batches of `take`; the first `skip` do not count. Returns a Lap."""
        for _ in range(self.lag + skip):
            yield take()
        passed, body, num = 0.0, 0.0, 0
        group = max(1, source.num_workers) if source else 1  # all workers finish a batch at about the same time
        synchronize()
        at = thread_time()
        while num < least or passed < seconds or num % group:
            self._interrupted, starting, began = False, source.starting if source else 0.0, time.perf_counter()
            batch = take()
            given = time.perf_counter()
            yield batch
            ended = time.perf_counter()
            if not self._interrupted:
                started = source.starting - starting if source else 0.0
                passed, body, num = passed + ended - began - started, body + ended - given, num + 1
        synchronize()  # the device ends the steps that it has been given
        passed += time.perf_counter() - ended
        return Lap(passed / num, body / num, thread_time().since(at).cpu / num)


class Kept:
    """A batch for many steps. If a step changes its tensors in place, each step gets a copy."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self._tensors = [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor)]
        self._versions = [version(tensor) for tensor in self._tensors]

    def take(self) -> Any:
        if [version(tensor) for tensor in self._tensors] != self._versions:
            return mapped(self.batch, torch.clone)
        return copy(self.batch) if isinstance(self.batch, dict | list) else self.batch


def synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
