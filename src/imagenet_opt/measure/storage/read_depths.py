"""Measures the rate of a storage at several numbers of requests in flight, with the reads of training."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.errors import ReadTimeout
from imagenet_opt.measure.stats.rate import NUM_WINDOWS, Ceiling

Indices = NDArray[np.int64]
Read = Callable[[Indices], Sequence[bytes]]
"""Reads the samples of one request, such as read_many of a store for one of its groups; thread-safe."""

DEPTHS = (1, 4, 16, 64, 256)
_LOOK_SECONDS = 0.005
_LATENCIES = 1.5
"""A measurement lasts at least this many latencies, so that requests begin and end in it."""
_LONGEST_LATENCY = 1.0
"""In seconds; a longer first answer is a stall of the storage, not its latency."""


def milliseconds(seconds: float) -> str:
    """Three digits, such as 0.0312 ms or 1,640 ms."""
    return f"{float(f'{1000 * seconds:.3g}'):,g} ms"


class Request(NamedTuple):
    """One call of `Read`; times in seconds of the monotonic clock."""

    began: float
    ended: float
    num_images: int
    num_bytes: int


@dataclass(frozen=True)
class DepthReads:
    """Measurements with `depth` requests in flight.

    windows: images per second in each window. latency_median: seconds of a request. cpus: number of CPUs that this
    process kept busy.
    """

    depth: int
    windows: tuple[float, ...]
    megabytes_per_second: float
    latency_median: float
    cpus: float

    @property
    def images_per_second(self) -> float:
        return self.ceiling.images_per_second

    @property
    def ceiling(self) -> Ceiling:
        facts = {name: float(value) for name, value in asdict(self).items() if name != "windows"}
        return Ceiling(self.windows, facts)


def read_at_depths(
    read: Read,
    groups: Iterable[Indices],
    depths: Sequence[int] = DEPTHS,
    *,
    seconds: float = 3.0,
    patience_seconds: float = 0.0,
) -> tuple[DepthReads, ...]:
    """Measure a storage at each depth for `seconds`, after a ramp-up of at most `seconds`. Answers that take longer
    lengthen both.

    groups: samples of one request; each group is read once. For cold reads: enough unread or evicted groups for all
    depths; for reads from memory: `itertools.cycle` of a few groups. Depths without groups are left out.
    patience_seconds: time for the first answer of a stalling storage, if longer than `seconds`.
    Raises the errors of `read`; ReadTimeout without any answer.
    """
    left = iter(groups)
    measured = (_read_at_depth(read, left, depth, seconds, patience_seconds) for depth in depths)
    return tuple(reads for reads in measured if reads is not None)


def summary(requests: Sequence[Request], depth: int, start: float, end: float, *, cpus: float = 0.0) -> DepthReads:
    """Rates and latency of the requests in flight between `start` and `end`.

    The images and bytes of a request count evenly over its duration, so that bursts of answers, as many requests with
    equal latency give them, do not make windows differ. Latencies are of requests that began between `start` and `end`.
    """
    began, ended, images, num_bytes = np.array(requests, np.float64).T
    rate = 1 / np.maximum(ended - began, 1e-9)

    def per_second(first: float, last: float, amounts: NDArray[np.float64]) -> float:
        seconds = np.clip(np.minimum(ended, last) - np.maximum(began, first), 0, None)
        return float((amounts * rate * seconds).sum() / (last - first))

    edges = np.linspace(start, end, NUM_WINDOWS + 1).tolist()
    inside = (began >= start) & (began < end)
    latencies = (ended - began)[inside if inside.any() else slice(None)]
    return DepthReads(
        depth,
        windows=tuple(per_second(first, last, images) for first, last in pairwise(edges)),
        megabytes_per_second=per_second(start, end, num_bytes) / 1e6,
        latency_median=float(np.median(latencies)),
        cpus=cpus,
    )


def _read_at_depth(
    read: Read, groups: Iterator[Indices], depth: int, seconds: float, patience_seconds: float
) -> DepthReads | None:
    """Measurements at one depth; None if no group was left to read."""
    began = _now()
    readers = _Readers(read, groups, depth)
    readers.wait(seconds, until=lambda: len(readers.requests) >= depth)
    if not readers.requests:
        readers.wait(patience_seconds - seconds, until=lambda: bool(readers.requests))
    seconds = max(seconds, _LATENCIES * readers.first_latency)
    start, cpu_start = _now()
    readers.wait(seconds)
    end, cpu_end = _now()
    readers.stop(patience=seconds)
    if readers.error is not None:
        raise readers.error
    requests = list(readers.requests)  # a copy, as late answers may still be added
    if not requests:
        if not readers.is_running:
            return None
        waited = 2 * seconds + max(seconds, patience_seconds)
        raise ReadTimeout(f"the storage answered none of {depth} reads within {waited:g} s (data.root)")
    if end - start < seconds / NUM_WINDOWS:  # the groups ended early: use the ramp-up too
        (start, cpu_start), (end, cpu_end) = began, _now()
    return summary(requests, depth, start, end, cpus=(cpu_end - cpu_start) / (end - start))


def _now() -> tuple[float, float]:
    """Wall time and CPU time of this process, in seconds."""
    return time.monotonic(), time.process_time()


class _Readers:
    """Threads that read one group after another; daemon threads, since a hanging read cannot be ended."""

    def __init__(self, read: Read, groups: Iterator[Indices], depth: int) -> None:
        self.requests: list[Request] = []
        self.error: Exception | None = None
        self._read, self._groups = read, groups
        self._turn = threading.Lock()
        self._stopped = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(depth)]
        for thread in self._threads:
            thread.start()

    @property
    def first_latency(self) -> float:
        """Seconds of the first answer, at most a second; 0 without an answer."""
        first = next(iter(self.requests), None)
        return 0.0 if first is None else min(first.ended - first.began, _LONGEST_LATENCY)

    @property
    def is_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Wait `seconds`, or until the groups are used up or `until` is true."""
        last = time.monotonic() + seconds
        while time.monotonic() < last and not self._stopped and not until():
            time.sleep(_LOOK_SECONDS)

    def stop(self, patience: float) -> None:
        """Start no more reads, and wait up to `patience` seconds for the pending reads."""
        self._stopped = True
        last = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, last - time.monotonic()))

    def _work(self) -> None:
        try:
            while (group := self._next()) is not None:
                began = time.monotonic()
                encoded = self._read(group)
                self.requests.append(Request(began, time.monotonic(), len(group), sum(map(len, encoded))))
        except Exception as error:
            self.error, self._stopped = error, True

    def _next(self) -> Indices | None:
        with self._turn:
            group = None if self._stopped else next(self._groups, None)
            if group is None:
                self._stopped = True
            return group
