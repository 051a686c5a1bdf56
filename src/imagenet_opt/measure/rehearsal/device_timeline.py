"""A simulated accelerator: when submitted steps would start and end, and a network that computes nothing."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from imagenet_opt.errors import ConfigError

_MOST_STEPS = 100_000
"""Number of latest steps that are stored."""


class DeviceStep(NamedTuple):
    """Start and end of a step on the device, on the timeline's clock, and the device's idle time before the step."""

    began: float
    ended: float
    idle_seconds: float


class DeviceTimeline:
    """The queue of a device with one copy engine and one compute engine.

    All times are deadlines computed from the times of submission: a sleep that takes too long delays the host, but does
    not count as work of the device, and these delays do not add up.

    steps_ahead: number of submitted, unfinished steps at which the host waits, as a CUDA launch queue holds a limited
    number of kernels.
    steps: the latest steps. busy_seconds, idle_seconds: of the device since the end of the first step, which does not
    count, as in MLPerf Storage.
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
        self._unfinished: deque[float] = deque(maxlen=steps_ahead)  # end times of the last steps
        self._clock, self._sleep = clock, sleep
        self._copied = self._computed = self._idle_since = float("-inf")

    @property
    def utilization(self) -> float | None:
        """Busy share, 0 to 1, from the end of the first step to the end of the last; None before the second step."""
        return share(self.busy_seconds, self.idle_seconds)

    def submit(self, compute_seconds: float, copy_seconds: float = 0.0) -> DeviceStep:
        """Submit a step: a copy, then a computation that needs the copy. Waits while the queue is full."""
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

    def synchronize(self) -> None:
        """Wait until all steps and copies are done."""
        self._wait_until(max(self._computed, self._copied))

    def pause(self) -> None:
        """Wait until all steps are done, and stop counting idle time until `resume`, due before the next step."""
        if self.steps:
            self.idle_seconds += max(0.0, self._clock() - self._idle_since)
        self.synchronize()

    def resume(self) -> None:
        self._idle_since = self._clock()

    def _wait_until(self, deadline: float) -> None:
        while (left := deadline - self._clock()) > 0:
            self._sleep(left)


def share(busy_seconds: float, idle_seconds: float) -> float | None:
    """Busy seconds divided by all seconds, 0 to 1; None if both are 0."""
    seconds = busy_seconds + idle_seconds
    return busy_seconds / seconds if seconds > 0 else None


class NullNetwork:
    """A forward that computes nothing: it returns zero logits of the right shape, which support a backward.

    net: the network; its own forward runs once if it has no attribute `num_classes`.
    launch: called with images (N, 3, H, W), and with training=False if no backward follows.
    """

    def __init__(self, net: nn.Module, launch: Callable[..., None]) -> None:
        self._net, self._forward, self._launch = net, net.forward, launch
        self._num_classes: int | None = getattr(net, "num_classes", None)

    def __call__(self, images: Tensor, *args: Any, **options: Any) -> Tensor:
        training = torch.is_grad_enabled()
        if self._num_classes is None:
            self._num_classes = self._count_classes(images[:1], *args, **options)
        self._launch(images, training=training)
        return torch.zeros(len(images), self._num_classes, requires_grad=training)

    @torch.no_grad()
    def _count_classes(self, images: Tensor, *args: Any, **options: Any) -> int:
        mode = self._net.training
        self._net.eval()
        logits = self._forward(images, *args, **options)
        self._net.train(mode)
        if not isinstance(logits, Tensor) or logits.dim() != 2:
            raise ConfigError(f"callbacks.rehearsal.network: {type(self._net).__name__} returns no logits (N, classes)")
        return logits.shape[1]


def burn(seconds: float) -> None:
    """Use `seconds` of CPU time, which takes longer on a busy CPU."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
