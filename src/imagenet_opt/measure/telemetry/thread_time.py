"""Where the time of a thread goes: computing, in the queue for a CPU, or waiting for something else."""

import os
import time
from typing import NamedTuple, Self


class ThreadTime(NamedTuple):
    """Seconds of a thread. cpu: it computed. queued: it was ready to compute, and no CPU was free (run queue)."""

    wall: float = 0.0
    cpu: float = 0.0
    queued: float = 0.0

    @property
    def waiting(self) -> float:
        """Seconds in which the thread waited for something else than a CPU."""
        return max(0.0, self.wall - self.cpu - self.queued)

    def plus(self, other: Self) -> Self:
        return type(self)(*(mine + its for mine, its in zip(self, other, strict=True)))

    def since(self, earlier: Self) -> Self:
        return type(self)(*(now - before for now, before in zip(self, earlier, strict=True)))

    def waited_for(self, others: Self) -> Self:
        """The waiting of this thread, divided as `others` divide: the time of threads that made what it waited for."""
        whole = max(others.wall, others.cpu + others.queued)  # the clocks are read one after the other
        scale = self.waiting / whole if whole else 0.0
        return type(self)(self.waiting, others.cpu * scale, others.queued * scale)


def thread_time() -> ThreadTime:
    """Of this thread until now; only differences count. Where the kernel does not report the run queue (see
    `sees_run_queue`), time in it counts as waiting."""
    return ThreadTime(time.perf_counter(), time.thread_time(), _schedstat()[1] / 1e9)


def sees_run_queue() -> bool:
    """Whether this system reports the time in the run queue. In gVisor the file is missing or has zeros."""
    return _schedstat()[0] > 0


def _schedstat() -> tuple[int, int]:
    """Nanoseconds of this thread on a CPU and in the run queue; zeros if they are not reported. Takes 6 us. Source:
    scheduler/sched-stats in Linux's documentation."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        try:
            computed, queued, _ = os.read(file, 64).split()
        finally:
            os.close(file)
        return int(computed), int(queued)
    except (OSError, ValueError):
        return 0, 0
