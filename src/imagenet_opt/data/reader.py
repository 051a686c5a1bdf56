"""Reads samples with many requests in flight, ahead of the batch that is being made."""

import errno
import logging
import math
import os
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from imagenet_opt import machine
from imagenet_opt.data.store import Indices, Store
from imagenet_opt.data.threads import Threads
from imagenet_opt.errors import BadSample, ReadTimeout

log = logging.getLogger(__name__)

_TRANSIENT = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ECONNRESET, errno.EBUSY}
_PAUSES = (0.1, 0.5, 2.0)
"""Seconds before each new try after a transient error."""
_MOST_IN_FLIGHT = 512
_FIRST_DEPTH = 32
"""Requests in flight until the latency is known."""
_QUICK_SECONDS = 1e-3
"""Requests that are answered sooner are made one after the other: threads would cost more than they hide."""
_CONVOY = 16
"""Quick requests that one task makes."""

Place = tuple[int, int]
"""(epoch, step)."""
Sample = bytes | BadSample


class Fetched(NamedTuple):
    """One batch's samples, in order, and what it took: seconds blocked, requests allowed in flight."""

    samples: list[Sample]
    wait_seconds: float
    reads_in_flight: int


class Reader:
    """Gives the bytes of batches; while one is decoded, the next ones are being read.

    reads_in_flight: requests at a time; None follows the measured latency: as many as come due while one is answered
    (Little's law, with a half more), and one where the storage answers at once.
    max_bytes: bound on what is read ahead and not yet asked for.
    timeout_seconds: after that a request is made once more, and then given up with ReadTimeout.
    """

    def __init__(
        self,
        store: Store,
        *,
        reads_in_flight: int | None = None,
        timeout_seconds: float = 60.0,
        max_bytes: int = 256 * 2**20,
    ) -> None:
        self.store = store
        self.asked = reads_in_flight
        self.timeout_seconds = timeout_seconds
        self.max_bytes = max_bytes
        self._requests = _Requests(store)
        self._pending: dict[Place, list[_Task]] = {}
        self._depth = reads_in_flight or _FIRST_DEPTH
        self._request_seconds = math.inf  # from one request's turn to the next one's, without waiting
        self._left_at: float | None = None

    def read(self, place: Place, indices: Indices, following: Iterable[tuple[Place, Indices]] = ()) -> Fetched:
        """The samples of the batch at `place`. following: the batches that will be asked for next, without end or not.

        A sample that cannot be read is a BadSample in its place. Raises ReadTimeout.
        """
        began = time.perf_counter()
        if self._requests.forked():
            self._pending.clear()
        tasks = self._pending.pop(place, None) or self._submit(indices)
        if self._left_at is not None:
            self._learn_pace(began - self._left_at, sum(len(task.groups) for task in tasks))
        ahead = self._ahead(following)
        for stale in self._pending.keys() - ahead.keys():
            for task in self._pending[stale]:
                task.future.cancel()
        self._pending = ahead
        samples = self._collect(tasks, indices)
        self._depth = self.asked or self._fitting_depth()
        self._left_at = time.perf_counter()
        return Fetched(samples, self._left_at - began, self._depth)

    def read_now(self, indices: Indices) -> list[Sample]:
        """Samples that nothing foresaw."""
        return self._collect(self._submit(indices), indices)

    def _submit(self, indices: Indices, size: int | None = None) -> "list[_Task]":
        """Requests for these samples, in tasks of so many."""
        groups = self.store.groups(indices)
        size = size or (_CONVOY if self._depth == 1 else 1)
        return [self._start(indices, groups[i : i + size]) for i in range(0, len(groups), size)]

    def _start(self, indices: Indices, groups: list[Indices]) -> "_Task":
        wanted = [indices[group] for group in groups]
        return _Task(groups, self._requests.start(wanted, self._depth, stop_when_slow=not self.asked))

    def _ahead(self, following: Iterable[tuple[Place, Indices]]) -> "dict[Place, list[_Task]]":
        """Requests for the next batches: twice as many as may be in flight, so that there is always one to make."""
        ahead: dict[Place, list[_Task]] = {}
        requests = num_bytes = 0.0
        for place, indices in following:
            if requests >= 2 * self._depth or num_bytes > self.max_bytes:
                break
            ahead[place] = self._pending.get(place) or self._submit(indices)
            requests += sum(len(task.groups) for task in ahead[place])
            num_bytes += len(indices) * self._requests.mean_bytes
        return ahead

    def _collect(self, tasks: "list[_Task]", indices: Indices) -> list[Sample]:
        samples: list[Sample] = [b""] * len(indices)
        waiting = deque(tasks)
        while waiting:
            task = waiting.popleft()
            found = [] if task.future.cancelled() else self._wait(task, indices)
            for group, some in zip(task.groups, found, strict=False):
                for place, sample in zip(group.tolist(), some, strict=True):
                    samples[place] = sample
            if rest := task.groups[len(found) :]:  # the storage has become slow: these at once, and so the others
                self._depth = max(self._depth, _FIRST_DEPTH)
                waiting.extend(self._start(indices, [group]) for group in rest)
                for other in waiting:
                    if len(other.groups) > 1:
                        other.future.cancel()
        return samples

    def _wait(self, task: "_Task", indices: Indices) -> "Run":
        wanted, future = [indices[group] for group in task.groups], task.future
        for again in (True, False):
            try:
                return future.result(self.timeout_seconds)
            except TimeoutError:
                index = int(wanted[0][0]) if len(wanted) == 1 else self._requests.last_index
                name = self.store.name(index)
                mount = machine.mount_of(name)
                if again:
                    log.warning(f"no answer for {self.timeout_seconds:g} s from {mount}, reading {name}; asking again")
                    future = self._requests.start_apart(wanted)
        raise ReadTimeout(
            f"no answer for twice {self.timeout_seconds:g} s, reading {name} on {mount}; see that the mount answers "
            "(ls it), or allow more time with data.read_timeout=SECONDS"
        )

    def _learn_pace(self, seconds: float, num_requests: int) -> None:
        pace = seconds / max(1, num_requests)
        known = math.isfinite(self._request_seconds)
        self._request_seconds = 0.5 * (pace + self._request_seconds) if known else pace

    def _fitting_depth(self) -> int:
        latency = self._requests.latency()
        if latency < _QUICK_SECONDS:
            return 1
        pace = self._request_seconds if math.isfinite(self._request_seconds) else 2e-3
        fits = max(1, int(self.max_bytes / max(1.0, self._requests.mean_bytes)))
        return max(4, min(math.ceil(1.5 * latency / max(pace, 1e-6)), fits, _MOST_IN_FLIGHT))


Run = list[list[Sample]]
"""Samples of each request of a task."""


class _Task(NamedTuple):
    """Requests that are made one after the other: places in the batch of each, and their samples to come."""

    groups: list[Indices]
    future: "Future[Run]"


class _Requests:
    """Makes requests in threads; tries again after transient errors; measures the latency."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.mean_bytes = 128e3  # of a sample; ImageNet's mean until the first is read
        self.last_index = 0
        self._latencies: deque[float] = deque(maxlen=32)
        self._threads: Threads | None = None
        self._process = os.getpid()

    def forked(self) -> bool:
        """Whether what was asked for before is lost: threads do not survive a fork."""
        return self._process != os.getpid()

    def start(self, wanted: list[Indices], depth: int, *, stop_when_slow: bool) -> "Future[Run]":
        """In a pool of `depth` threads, or up to a quarter more or less, so that it is not made anew all the time."""
        if self._threads is None or self.forked() or not 0.75 < depth / self._threads.num < 1.25:
            self._threads, self._process = Threads(depth), os.getpid()
        return self._threads.submit(self._make_all, wanted, stop_when_slow)

    def start_apart(self, wanted: list[Indices]) -> "Future[Run]":
        """In a thread of its own, as those of the pool may all hang; one of them at least does."""
        if self._threads is not None:
            self._threads.add()
        return Threads(1).submit(self._make_all, wanted, False)

    def latency(self) -> float:
        """Median seconds of the last requests; 0 before the first."""
        return float(np.median(self._latencies)) if self._latencies else 0.0

    def _make_all(self, wanted: list[Indices], stop_when_slow: bool) -> Run:
        """Fewer than wanted where one of several turns out slow: the rest is better made at once."""
        found = []
        for indices in wanted:
            began = time.perf_counter()
            found.append(self._make(indices))
            if stop_when_slow and time.perf_counter() - began > _QUICK_SECONDS * _CONVOY:
                break
        return found

    def _make(self, indices: Indices) -> list[Sample]:
        try:
            return list(self._persist(indices))
        except (OSError, BadSample) as error:
            if len(indices) > 1:
                return [sample for index in indices for sample in self._make(np.array([index]))]
            return [error if isinstance(error, BadSample) else self._bad(int(indices[0]), error)]

    def _persist(self, indices: Indices) -> list[bytes]:
        for pause in (*_PAUSES, None):
            self.last_index, began = int(indices[0]), time.perf_counter()
            try:
                samples = self.store.read_many(indices)
            except OSError as error:
                if error.errno not in _TRANSIENT or pause is None:
                    raise
                log.warning(f"{self.store.name(int(indices[0]))}: {error.strerror}; trying again in {pause:g} s")
                time.sleep(pause)
                continue
            self._latencies.append(time.perf_counter() - began)
            self.mean_bytes += 0.02 * (sum(map(len, samples)) / len(samples) - self.mean_bytes)
            return samples
        raise AssertionError("the last try returns or raises")

    def _bad(self, index: int, error: OSError) -> BadSample:
        reason = error.strerror or error
        return BadSample(f"cannot read {self.store.name(index)}: {reason}; restore the file or remove it (data.root)")
