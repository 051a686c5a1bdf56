"""Reads samples with many requests in flight, ahead of the batch that is being made."""

import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from imagenet_opt.data.options import Auto
from imagenet_opt.data.storage.read_pool import (
    QUICK_SECONDS,
    READ_AHEAD_BYTES,
    READS_PER_TASK,
    ReadPool,
    ReadTask,
    Sample,
)
from imagenet_opt.data.storage.store import CachedStore, Indices, Store
from imagenet_opt.measure.telemetry.thread_time import ThreadTime, thread_time

FIRST = 32
"""Requests in flight until the latency is known; further requests are added in steps."""
_LEAST, _MOST = 4, 512
_SPARE = 1.5
"""Requests in flight, as a multiple of the requests that become due during one answer."""
_PACES = 9
"""Batches over which the median of the pace is taken, so that a pause of training (validation, a save) is ignored."""
_SAME_GROWTH = 0.75
"""Requests wait in a queue of the storage if the latency grows with this power of their number, or more."""
_PATIENCE = 20
"""An undone step is tried again after this number of answers, as a multiple of the requests in flight."""
_PLANNED = 0.8
"""Share of the memory for samples that requests ahead are planned to take, so that none is postponed."""

Portion = tuple[int, ...]
"""Identifies a portion of a batch: epoch, step, image size, part, number of parts, number of the portion."""


class ReadResult(NamedTuple):
    """Samples of a portion in order, None for a postponed sample; their bytes, and the limit of requests in flight."""

    samples: list[Sample | None]
    num_bytes: int
    reads_in_flight: int


class ReadConcurrency:
    """Number of requests in flight: 1.5 times the requests that become due during one answer (Little's law).

    If bandwidth is the limit, further requests only raise the latency, and the number would grow without end. So beyond
    `FIRST` the number doubles in steps, and a step is undone if the latency grew in proportion.
    """

    def __init__(self) -> None:
        self.now = FIRST
        self._limit = FIRST
        self._before: tuple[int, float] | None = None  # requests and latency before the last step up
        self._unsure = 0  # answers until the latency is measured with `_limit`
        self._paces: deque[float] = deque(maxlen=_PACES)

    def reset(self) -> None:
        """Note that a fast storage has become slow."""
        self.now = max(self.now, FIRST)

    def update(self, *, latency: float, pace: float | None, most: float, answers: int) -> None:
        """Call for each batch. latency: median seconds of an answer. pace: seconds between the starts of two requests,
        without waits; None if unknown. most: requests that fit into memory. answers: their number since the last call.
        """
        self._unsure -= answers
        if pace is not None:
            self._paces.append(pace)
        if latency < QUICK_SECONDS:
            self.now = 1
            return
        usual = float(np.median(self._paces)) if self._paces else 2e-3
        wanted = max(_LEAST, min(math.ceil(_SPARE * latency / max(usual, 1e-6)), int(most), _MOST))
        if wanted <= self._limit:
            self._before = None
        elif self.now < self._limit:
            self._unsure = max(self._unsure, self._limit)
        elif self._unsure <= 0:
            self._step(latency)
        self.now = min(wanted, self._limit)

    def _step(self, latency: float) -> None:
        """Raise the limit, or undo the last step if the latency grew in proportion."""
        if self._before is not None:
            requests, seconds = self._before
            if latency > seconds * (self._limit / requests) ** _SAME_GROWTH:
                self._before, self._limit, self._unsure = None, requests, _PATIENCE * requests
                return
        self._before = (self._limit, latency)
        self._limit = min(2 * self._limit, _MOST)
        self._unsure = 3 * self._limit  # requests that were made earlier are answered first


class ReadAhead:
    """Provides the bytes of portions of batches; while one portion is decoded, the next portions are read.

    reads_in_flight: simultaneous requests; "auto" follows the storage, see ReadConcurrency. max_bytes: limit of the
    samples of a portion and of those that are read ahead. A sample beyond the limit is None, and `read_unplanned` reads
    it once the caller has dropped the others. timeout_seconds: after this time a request is repeated once, and then
    fails with ReadTimeout. Temporary errors are retried for half of this time; then the file is a BadSample, or
    StorageFailed is raised if the whole storage fails.
    """

    def __init__(
        self, store: Store, *, reads_in_flight: int | Auto, timeout_seconds: float, max_bytes: int = READ_AHEAD_BYTES
    ) -> None:
        self.store = store
        self.max_bytes = max_bytes
        self._requests = ReadPool(store, timeout_seconds=timeout_seconds, max_bytes=max_bytes)
        self._pending: dict[Portion, list[ReadTask]] = {}
        self._depth: int | ReadConcurrency = ReadConcurrency() if reads_in_flight == "auto" else reads_in_flight
        self._left_at: float | None = None  # end of the last read
        self._waited = ThreadTime()
        self._num_read = 0  # samples handed over since `take_events`, less those that were ahead at that time

    def __getstate__(self) -> dict[str, Any]:
        """Another process makes its own requests."""
        return self.__dict__ | {"_pending": {}}

    def read(self, place: Portion, indices: Indices, following: Iterable[tuple[Portion, Indices]] = ()) -> ReadResult:
        """The samples of the portion at `place`. following: portions that will be requested next, possibly endless. A
        sample that cannot be read is a BadSample in its place. Raises ReadTimeout, StorageFailed."""
        began = time.perf_counter()
        self._requests.release()
        if self._requests.forked():
            self._pending.clear()
        tasks = self._pending.pop(place, None) or self._submit(indices)
        busy_seconds = None if self._left_at is None else began - self._left_at
        ahead = self._ahead(following)
        for stale in self._pending.keys() - ahead.keys():
            for task in self._pending[stale]:
                task.future.cancel()
        self._pending = ahead
        samples = self._collect(tasks, indices)
        if isinstance(self._depth, ReadConcurrency):
            answers = sum(len(task.groups) for task in tasks)
            self._depth.update(
                latency=self._requests.latency(),
                pace=None if busy_seconds is None else busy_seconds / max(1, answers),
                most=self.max_bytes / max(1.0, self._requests.mean_bytes),
                answers=answers,
            )
        self._left_at = time.perf_counter()
        num_bytes = sum(len(sample) for sample in samples if isinstance(sample, bytes))
        return ReadResult(samples, num_bytes, self.reads_in_flight)

    @property
    def reads_in_flight(self) -> int:
        """Present limit of simultaneous requests."""
        return self._depth.now if isinstance(self._depth, ReadConcurrency) else self._depth

    def take_waits(self) -> ThreadTime:
        """How long the caller waited for samples since the last call, divided as the requests divide their time: into
        waiting for the storage, computing, and waiting for a CPU."""
        waited, self._waited = self._waited, ThreadTime()
        return waited

    def take_events(self) -> Counter[str]:
        """Events of this process since the last call: of ReadPool, of a CachedStore, and `num_read`, the samples that
        were read, ahead too."""
        of_cache = self.store.events.take() if isinstance(self.store, CachedStore) else Counter[str]()
        tasks = (task for tasks in self._pending.values() for task in tasks)
        ahead = sum(len(samples) for task in tasks for samples in task.answers)
        num_read, self._num_read = self._num_read + ahead, -ahead
        return self._requests.events.take() + of_cache + Counter(num_read=num_read)

    def read_unplanned(self, indices: Indices) -> list[Sample | None]:
        """Read samples that were not read ahead, at least one of them. The caller has dropped all earlier samples."""
        self._requests.release()
        samples = self._collect(self._submit(indices), indices)
        if all(sample is None for sample in samples):
            samples[0] = self._requests.read_one(int(indices[0]))
        return samples

    def read_each(self, indices: Indices) -> Iterator[tuple[int, Sample]]:
        """Each of `indices` with its sample, in another order if some are postponed."""
        while len(indices):
            samples, postponed = self.read_unplanned(indices), []
            for place, index in enumerate(indices.tolist()):
                sample, samples[place] = samples[place], None
                if sample is None:
                    postponed.append(index)
                else:
                    yield index, sample
                del sample
            indices = np.array(postponed, np.int64)

    def _submit(self, indices: Indices) -> list[ReadTask]:
        """Submit requests for these samples: one request per task, or several if the requests are quick."""
        groups = self.store.groups(indices)
        size = READS_PER_TASK if self.reads_in_flight == 1 else 1
        return [self._start(indices, groups[i : i + size]) for i in range(0, len(groups), size)]

    def _start(self, indices: Indices, groups: list[Indices]) -> ReadTask:
        wanted, adaptive = [indices[group] for group in groups], isinstance(self._depth, ReadConcurrency)
        return self._requests.start(groups, wanted, self.reads_in_flight, stop_when_slow=adaptive)

    def _ahead(self, following: Iterable[tuple[Portion, Indices]]) -> dict[Portion, list[ReadTask]]:
        """Request the next portions: twice as many requests as may be in flight, so that no thread is idle.
        Requests that were made earlier stay, even if the limit is lower now."""
        ahead: dict[Portion, list[ReadTask]] = {}
        requests = num_bytes = 0.0
        for place, indices in following:
            tasks = self._pending.get(place)
            if tasks is None and (requests >= 2 * self.reads_in_flight or num_bytes > _PLANNED * self.max_bytes):
                break
            ahead[place] = tasks or self._submit(indices)
            requests += sum(len(task.groups) for task in ahead[place])
            num_bytes += len(indices) * self._requests.mean_bytes
        return ahead

    def _collect(self, tasks: list[ReadTask], indices: Indices) -> list[Sample | None]:
        samples: list[Sample | None] = [None] * len(indices)
        waiting, began, requests = deque(tasks), thread_time(), ThreadTime()
        self._num_read += len(indices)
        while waiting:
            task = waiting.popleft()
            answers = [] if task.future.cancelled() else self._requests.hand_over(task)
            requests = requests.plus(task.spent)
            for group, samples_of_group in zip(task.groups, answers, strict=False):
                for place, sample in zip(group.tolist(), samples_of_group, strict=True):
                    samples[place] = sample
            if rest := task.groups[len(answers) :]:  # the storage became slow: one task for each request from now on
                if isinstance(self._depth, ReadConcurrency):
                    self._depth.reset()
                waiting.extend(self._start(indices, [group]) for group in rest)
                for other in waiting:
                    if len(other.groups) > 1:
                        other.future.cancel()
        self._waited = self._waited.plus(thread_time().since(began).waited_for(requests))
        return samples
