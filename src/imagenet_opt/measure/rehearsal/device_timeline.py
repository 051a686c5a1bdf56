"""An accelerator that is not there: when the steps given to it would begin and end."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

_MOST_STEPS = 100_000
"""Latest steps that are kept."""


class DeviceStep(NamedTuple):
    """When a step began and ended on the device, on the timeline's clock, and how long that was idle before."""

    began: float
    ended: float
    idle_seconds: float


class DeviceTimeline:
    """The queue of a device with one engine that copies and one that computes.

    All times are deadlines that follow from when steps were submitted: a sleep that takes too long delays the host,
    but is never counted as work of the device, and its excess does not add up.

    steps_ahead: so many steps may be submitted and not yet done, as a CUDA launch queue holds a limited number of
    kernels; the host then waits.
    steps: the latest ones. busy_seconds, idle_seconds: of the device since the end of the first step, which is left
    out as MLPerf Storage does: it has nothing before it.
    """

    def __init__(
        self,
        *,
        steps_ahead: int = 2,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.steps: deque[DeviceStep] = deque(maxlen=_MOST_STEPS)
        self.busy_seconds = 0.0
        self.idle_seconds = 0.0
        self._unfinished: deque[float] = deque(maxlen=steps_ahead)  # when the last ones end
        self._clock, self._sleep = clock, sleep
        self._copied = self._computed = self._idle_since = float("-inf")

    @property
    def utilization(self) -> float | None:
        """Share of the time, 0 to 1, from the end of the first step to that of the last; None before the second."""
        return share(self.busy_seconds, self.idle_seconds)

    def submit(self, compute_seconds: float, copy_seconds: float = 0.0) -> DeviceStep:
        """Give the device a step: a copy, and the computation that needs it. Waits while the queue is full."""
        if len(self._unfinished) == self._unfinished.maxlen:
            self._wait_until(self._unfinished[0])
        now = self._clock()
        self._copied = max(self._copied, now) + copy_seconds
        began = max(self._computed, self._copied)
        idle_seconds = 0.0
        if self.steps:
            idle_seconds = began - self._idle_since
            self.idle_seconds += idle_seconds
            self.busy_seconds += compute_seconds
        self._computed = self._idle_since = began + compute_seconds
        self._unfinished.append(self._computed)
        self.steps.append(DeviceStep(began, self._computed, idle_seconds))
        return self.steps[-1]

    def synchronize(self, copy_seconds: float = 0.0) -> None:
        """Wait until all is done, and then for a copy to the host."""
        self._copied = max(self._computed, self._copied, self._clock()) + copy_seconds
        self._wait_until(self._copied)

    def pause(self) -> None:
        """Wait until all is done. Until `resume`, which must come before the next step, idleness does not count."""
        if self.steps:
            self.idle_seconds += max(0.0, self._clock() - self._idle_since)
        self.synchronize()

    def resume(self) -> None:
        self._idle_since = self._clock()

    def _wait_until(self, deadline: float) -> None:
        while (left := deadline - self._clock()) > 0:
            self._sleep(left)


def share(busy_seconds: float, idle_seconds: float) -> float | None:
    """Busy seconds over all, 0 to 1; None of no time."""
    seconds = busy_seconds + idle_seconds
    return busy_seconds / seconds if seconds > 0 else None
