"""Reads samples with many requests in flight, ahead of the batch that is being made."""

import math
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from imagenet_opt.data.requests import CONVOY, QUICK_SECONDS, Requests, Sample, Task
from imagenet_opt.data.store import Indices, Store

READ_AHEAD_BYTES = 128 * 2**20
"""What one worker reads ahead at most."""
_MOST_IN_FLIGHT = 512
_FIRST_DEPTH = 32
"""Requests in flight until the latency is known."""
_PACES = 9
"""Batches whose median pace counts: a pause of training (validation, a save) is no pace."""

Place = tuple[int, int]
"""(epoch, step)."""


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
    timeout_seconds: after that a request is made once more, and then given up with ReadTimeout. Transient errors are
    tried again for half of that; then the file is a BadSample, or the whole storage out: StorageFailed.
    """

    def __init__(
        self,
        store: Store,
        *,
        reads_in_flight: int | None = None,
        timeout_seconds: float = 60.0,
        max_bytes: int = READ_AHEAD_BYTES,
    ) -> None:
        self.store = store
        self.asked = reads_in_flight
        self.max_bytes = max_bytes
        self._requests = Requests(store, timeout_seconds=timeout_seconds)
        self._pending: dict[Place, list[Task]] = {}
        self._depth = reads_in_flight or _FIRST_DEPTH
        self._paces: deque[float] = deque(maxlen=_PACES)  # seconds from one request's turn to the next, without waiting
        self._left_at: float | None = None

    def read(self, place: Place, indices: Indices, following: Iterable[tuple[Place, Indices]] = ()) -> Fetched:
        """The samples of the batch at `place`. following: the batches that will be asked for next, without end or not.

        A sample that cannot be read is a BadSample in its place. Raises ReadTimeout, StorageFailed.
        """
        began = time.perf_counter()
        if self._requests.forked():
            self._pending.clear()
        tasks = self._pending.pop(place, None) or self._submit(indices)
        if self._left_at is not None:
            self._paces.append((began - self._left_at) / max(1, sum(len(task.groups) for task in tasks)))
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

    def _submit(self, indices: Indices) -> list[Task]:
        """Requests for these samples: one task each, or several in a task where they are quick."""
        groups = self.store.groups(indices)
        size = CONVOY if self._depth == 1 else 1
        return [self._start(indices, groups[i : i + size]) for i in range(0, len(groups), size)]

    def _start(self, indices: Indices, groups: list[Indices]) -> Task:
        wanted = [indices[group] for group in groups]
        return self._requests.start(groups, wanted, self._depth, stop_when_slow=not self.asked)

    def _ahead(self, following: Iterable[tuple[Place, Indices]]) -> dict[Place, list[Task]]:
        """Requests for the next batches: twice as many as may be in flight, so that there is always one to make.

        What was asked for before stays, also when fewer may be in flight now.
        """
        ahead: dict[Place, list[Task]] = {}
        requests = num_bytes = 0.0
        for place, indices in following:
            tasks = self._pending.get(place)
            if tasks is None and (requests >= 2 * self._depth or num_bytes > self.max_bytes):
                break
            ahead[place] = tasks or self._submit(indices)
            requests += sum(len(task.groups) for task in ahead[place])
            num_bytes += len(indices) * self._requests.mean_bytes
        return ahead

    def _collect(self, tasks: list[Task], indices: Indices) -> list[Sample]:
        samples: list[Sample] = [b""] * len(indices)
        waiting = deque(tasks)
        while waiting:
            task = waiting.popleft()
            found = [] if task.future.cancelled() else self._requests.answer(task)
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

    def _fitting_depth(self) -> int:
        latency = self._requests.latency()
        if latency < QUICK_SECONDS:
            return 1
        pace = float(np.median(self._paces)) if self._paces else 2e-3
        fits = max(1, int(self.max_bytes / max(1.0, self._requests.mean_bytes)))
        return max(4, min(math.ceil(1.5 * latency / max(pace, 1e-6)), fits, _MOST_IN_FLIGHT))
