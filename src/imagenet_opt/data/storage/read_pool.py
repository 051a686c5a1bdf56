"""Makes requests to a store in threads: measures and retries them, limits their memory, names one that hangs."""

import errno
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from imagenet_opt import machine
from imagenet_opt.data.storage.retry import TRANSIENT, Events, SparseWarnings, is_out, retry_transient
from imagenet_opt.data.storage.store import CachedStore, Indices, Store
from imagenet_opt.errors import BadSample, ReadTimeout, StorageFailed, StorageForbidden
from imagenet_opt.measure.telemetry.thread_time import ThreadTime, thread_time
from imagenet_opt.object_storage import is_url
from imagenet_opt.regular_file import reserve

log = logging.getLogger(__name__)

T = TypeVar("T")
Calls = SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
Sample = bytes | BadSample
Results = list[list[Sample | None]]
"""Samples of each request of a task; None for a postponed sample, see ReadMemory."""

READ_AHEAD_BYTES = 128 * 2**20
"""Limit of the encoded bytes that one worker holds: read ahead, and in the portion that it decodes."""
QUICK_SECONDS = 1e-3
"""Requests with a lower latency are made one after the other, because threads would cost more time than they save."""
READS_PER_TASK = 16
"""Quick requests that one task makes."""


class DaemonPool:
    """`num` threads that make calls, and end after all calls once this object has no reference.

    The end of the process does not wait for the threads, unlike for the threads of a ThreadPoolExecutor.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self._calls: Calls = SimpleQueue()
        weakref.finalize(self, self._calls.put, None).atexit = False
        for _ in range(num):
            self.add()

    def add(self) -> None:
        """Add a thread, to replace a thread that hangs."""
        threading.Thread(target=_work, args=(self._calls,), daemon=True, name="reading").start()

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, call, arguments))
        return future


def _work(calls: Calls) -> None:
    while (wanted := calls.get()) is not None:
        future, call, arguments = wanted
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call(*arguments))
            except BaseException as error:
                future.set_exception(error)
        del wanted, future, call, arguments  # a waiting thread keeps nothing alive, not even this pool
    calls.put(None)  # ends the next thread


class Postponed(OSError):
    """A sample does not fit into the memory beside the samples that are held."""


class ReadMemory:
    """Memory for `most` bytes of samples. A sample may take half of it, and what does not fit is postponed: a read that
    waited for memory might wait for samples that are needed only after its own."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held, self._lock = 0, threading.Lock()
        self._given = deque[int]()  # without the lock, because the garbage collector gives too

    def __reduce__(self) -> tuple[type["ReadMemory"], tuple[int]]:
        """Another process holds no samples yet; a lock cannot be pickled."""
        return ReadMemory, (self.most,)

    def take(self, size: int, must: bool) -> None:
        """Raises Postponed, unless the bytes `must` be read; OSError for a sample that is too large."""
        if size > self.most // 2:
            most = f"the {self.most // 2**21} MiB that an image may have"
            raise OSError(errno.EFBIG, f"{size} bytes are more than {most}; imagenet-opt pack makes images smaller")
        with self._lock:
            while self._given:
                self._held -= self._given.pop()
            if not must and self._held + size > self.most:
                raise Postponed
            self._held += size

    def give(self, size: int) -> None:
        self._given.append(size)


class ReadTask:
    """Requests that one thread makes in sequence.

    groups: positions of their samples in the batch. wanted: indices of their samples. `answers` grows with each answer.
    `index`, `since`: first sample and start (`time.monotonic`) of the present request; -inf before the first request.
    must: read the samples even if they do not fit into the memory. num_bytes: those of `memory` that the task holds.
    spent: time of its thread on the requests, once they are answered.
    """

    def __init__(self, groups: list[Indices], wanted: list[Indices], memory: ReadMemory, *, must: bool = False) -> None:
        self.groups, self.wanted, self.memory, self.must = groups, wanted, memory, must
        self.num_bytes, self.spent = 0, ThreadTime()
        self.answers: Results = []
        self.index, self.since = int(wanted[0][0]), -math.inf
        self.future: Future[Results]

    def answer(self, seconds: float) -> Results:
        """All results. Raises TimeoutError if one request has no answer for this long."""
        began = time.monotonic()
        while not self.future.done():
            left = max(began, self.since) + seconds - time.monotonic()
            if left <= 0:
                raise TimeoutError
            wait([self.future], left)
        return self.future.result()

    def reserve(self, size: int) -> None:
        """Take memory for a sample. Raises OSError, see ReadMemory."""
        self.memory.take(size, self.must)
        self.num_bytes += size

    def free(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes
        self.memory.give(num_bytes)

    def __del__(self) -> None:
        self.free(self.num_bytes)


class ReadPool:
    """Makes requests in threads; measures latency and size.

    events: `retries`, requests of this process that failed with a temporary error; `throttled`, those of them that the
    service refused because it got too many (429, 503). timeout_seconds: see ReadAhead. max_bytes: see ReadMemory.
    """

    def __init__(self, store: Store, *, timeout_seconds: float, max_bytes: int = READ_AHEAD_BYTES) -> None:
        self.store = store
        self.timeout_seconds = timeout_seconds
        self._memory, self._handed_over = ReadMemory(max_bytes), 0
        self.mean_bytes = 128e3  # of a sample; ImageNet's mean until the first is read
        self._latencies = {is_hit: deque[float](maxlen=32) for is_hit in (False, True)}  # hit: of the local cache
        self._threads: DaemonPool | None = None
        self._running: set[ReadTask] = set()
        self._process = os.getpid()
        self.events = Events()
        self._warn = SparseWarnings(log)

    def __getstate__(self) -> dict[str, Any]:
        """Another process starts its own threads and counts."""
        fresh: dict[str, Any] = {"_threads": None, "_running": set(), "events": Events(), "_handed_over": 0}
        return self.__dict__ | fresh | {"_memory": ReadMemory(self._memory.most)}

    def forked(self) -> bool:
        """Whether earlier requests are lost, because threads do not survive a fork."""
        return self._process != os.getpid()

    def start(
        self, groups: list[Indices], wanted: list[Indices], depth: int, *, stop_when_slow: bool, must: bool = False
    ) -> ReadTask:
        """Submit to a pool of `depth` threads; a pool within a quarter of that size is reused. must: see ReadTask."""
        if self.forked():
            self._process = os.getpid()
            self.__dict__.update(self.__getstate__())
        if self._threads is None or not 0.75 < depth / self._threads.num < 1.25:
            self._threads = DaemonPool(depth)
        task = ReadTask(groups, wanted, self._memory, must=must)
        task.future = self._threads.submit(self._run, task, stop_when_slow)
        return task

    def read_all(self, requests: Iterable[Indices], depth: int) -> Iterator[list[Sample]]:
        """The samples of each request, in order, while up to twice `depth` requests wait or run. A request that hangs
        is repeated once. Raises ReadTimeout, StorageFailed."""
        running = deque[ReadTask]()
        for wanted in requests:
            running.append(self.start([np.arange(len(wanted))], [wanted], depth, stop_when_slow=False))
            if len(running) > 2 * depth:
                yield self._samples(running.popleft())
        while running:
            yield self._samples(running.popleft())

    def _samples(self, task: ReadTask) -> list[Sample]:
        (samples,), indices = self._answer(task), task.wanted[0].tolist()
        return [self.read_one(i) if sample is None else sample for i, sample in zip(indices, samples, strict=True)]

    def read_one(self, index: int) -> Sample:
        """Read a sample even if it does not fit into the memory. Raises as `read_all`."""
        depth = 1 if self._threads is None else self._threads.num
        task = self.start([np.array([0])], [np.array([index])], depth, stop_when_slow=False, must=True)
        ((sample,),) = self._answer(task)
        assert sample is not None
        return sample

    def hand_over(self, task: ReadTask) -> Results:
        """Results of a task, with postponed samples. They count as held until `release`. Raises as `read_all`."""
        answers = self._answer(task)
        self._handed_over, task.num_bytes = self._handed_over + task.num_bytes, 0
        return answers

    def release(self) -> None:
        """Free the memory of all samples that were handed over."""
        self._memory.give(self._handed_over)
        self._handed_over = 0

    def _answer(self, task: ReadTask) -> Results:
        try:
            return task.answer(self.timeout_seconds)
        except TimeoutError:
            answers = list(task.answers)
            name = self.store.name(self._hanging(task).index)
            delay = f"no answer for {self.timeout_seconds:g} s from {machine.mount_of(name)}, reading {name}"
            log.warning(f"{delay}; repeating the request")
        task.future.cancel()
        if self._threads is not None:
            self._threads.add()
        again = ReadTask(task.groups[len(answers) :], task.wanted[len(answers) :], self._memory, must=task.must)
        again.future = DaemonPool(1).submit(self._run, again, False)  # all threads of the pool may hang
        try:
            return answers + again.answer(self.timeout_seconds)
        except TimeoutError:
            name = self.store.name(again.index)
            raise ReadTimeout(
                f"no answer for {2 * self.timeout_seconds:g} s, reading {name} on {machine.mount_of(name)}; "
                f"{_check(name)}, or allow more time with data.read_timeout=SECONDS"
            ) from None

    def latency(self) -> float:
        """Median seconds of the last requests; 0 before the first. With a local cache: of the requests to the storage
        or of those to the cache, whichever median is larger, so that many hits do not hide slow misses."""
        return max(float(np.median(seconds)) if seconds else 0.0 for seconds in self._latencies.values())

    def _hanging(self, task: ReadTask) -> ReadTask:
        """The task, or the task that has run longest if this task waits for a thread."""
        if math.isfinite(task.since):
            return task
        return min(tuple(self._running), key=lambda other: other.since, default=task)

    def _run(self, task: ReadTask, stop_when_slow: bool) -> Results:
        """Run the requests. stop_when_slow: leave the rest to other threads as soon as one request is slow."""
        self._running.add(task)
        started = thread_time()
        try:
            for indices in task.wanted:
                began = time.perf_counter()
                task.answers.append(self._make(task, indices, self.timeout_seconds / 2))
                if stop_when_slow and time.perf_counter() - began > QUICK_SECONDS * READS_PER_TASK:
                    break
            return task.answers
        finally:
            task.spent = thread_time().since(started)
            self._running.discard(task)

    def _make(self, task: ReadTask, indices: Indices, patience: float) -> list[Sample | None]:
        name = partial(self.store.name, int(indices[0]))
        try:
            return list(retry_transient(partial(self._read, task, indices), name, patience, self._warn))
        except BadSample as error:
            if len(indices) == 1:
                return [error]
        except StorageForbidden as error:
            if self._others_fail(task, int(indices[0])):
                raise
            if len(indices) == 1:
                return [BadSample(str(error))]
        except Postponed:
            if len(indices) == 1:
                return [None]
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in TRANSIENT:
                self._check_storage(task, int(indices[0]), reason)
                patience = 0  # the group was retried already
            if len(indices) == 1:
                remedy = "restore the file or remove it (data.root)"
                if error.errno == errno.EBUSY:
                    remedy = "the storage is busy: lower data.reads_in_flight, or raise data.read_timeout"
                return [BadSample(f"cannot read {name()}: {reason}; {remedy}")]
        return [sample for index in indices for sample in self._make(task, np.array([index]), patience)]

    def _read(self, task: ReadTask, indices: Indices) -> list[bytes]:
        task.index, task.since = int(indices[0]), time.monotonic()
        is_hit = isinstance(self.store, CachedStore) and self.store.holds(indices)
        began, held = time.perf_counter(), task.num_bytes
        token = reserve.set(task.reserve)
        try:
            samples = self.store.read_many(indices)
        except (OSError, MemoryError, BadSample) as error:
            task.free(task.num_bytes - held)
            if isinstance(error, MemoryError):
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error
            if isinstance(error, OSError) and error.errno in TRANSIENT:
                self.events.add("retries")
                self.events.add("throttled", error.errno == errno.EBUSY)
            raise
        finally:
            reserve.reset(token)
        self._latencies[is_hit].append(time.perf_counter() - began)
        self.mean_bytes += 0.02 * (sum(map(len, samples)) / len(samples) - self.mean_bytes)
        return samples

    def _others_fail(self, task: ReadTask, index: int) -> bool:
        return is_out(index, len(self.store), lambda other: self._read(task, np.array([other])))

    def _check_storage(self, task: ReadTask, index: int, reason: str) -> None:
        """Raise StorageFailed unless another sample can be read, or fails with a permanent error."""
        if not self._others_fail(task, index):
            return
        name = self.store.name(index)
        raise StorageFailed(
            f"{machine.mount_of(name)} fails: {reason} for {self.timeout_seconds / 2:g} s, reading {name} and other "
            f"files; {_check(name)}, then run the same command again. Reads are retried for half of "
            f"data.read_timeout={self.timeout_seconds:g} s: raise it to wait longer"
        )


def _check(name: str) -> str:
    return "check the network and the service" if is_url(name) else "check that ls works on the mount"
