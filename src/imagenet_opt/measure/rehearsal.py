"""Simulates an accelerator that the machine does not have: its speeds, when submitted steps would start and end, and a
network that computes nothing."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from imagenet_opt.errors import ConfigError, printable

_IMAGE_SIZE = 224
_FORWARD_SHARE = 1 / 3
"""Share of a training step: the backward pass takes about twice as many operations as the forward pass."""
_STEPS_AHEAD = 2
"""Submitted, unfinished steps at which the host waits, as a CUDA launch queue holds a limited number of kernels."""


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """Speeds of a device that trains ResNet-50 on images of 224 pixels in mixed precision.

    launch_seconds: CPU time of the host to launch the kernels of one training step. copy_gb_per_second: from pinned
    memory to the device. source: origin of the numbers. estimate: whether the numbers were not measured on this kind of
    device.

    Raises ConfigError.
    """

    name: str
    images_per_second: float
    launch_seconds: float
    copy_gb_per_second: float
    source: str = "unknown"
    estimate: bool = True

    def __post_init__(self) -> None:
        for key in ("images_per_second", "copy_gb_per_second"):
            if not 0 < (value := getattr(self, key)) < math.inf:
                raise ConfigError(f"callbacks.rehearsal.{key}={value} must be above 0")
        if not 0 <= self.launch_seconds < math.inf:
            raise ConfigError(f"callbacks.rehearsal.launch_seconds={self.launch_seconds} must be at least 0")

    def __str__(self) -> str:
        return f"simulated {printable(self.name)}{' (estimate)' if self.estimate else ''}"

    def step_seconds(self, num_images: int, image_size: float, *, training: bool = True) -> float:
        """Seconds of computation, in proportion to the area of the images."""
        seconds = num_images / self.images_per_second * (image_size / _IMAGE_SIZE) ** 2
        return seconds if training else seconds * _FORWARD_SHARE

    def step_launch_seconds(self, *, training: bool = True) -> float:
        return self.launch_seconds if training else self.launch_seconds * _FORWARD_SHARE

    def copy_seconds(self, num_bytes: int) -> float:
        """Seconds to copy to the device."""
        return num_bytes / (self.copy_gb_per_second * 1e9)


class DeviceTimeline:
    """The queue of a device with one copy engine and one compute engine.

    All times are deadlines computed from the times of submission: a sleep that takes too long delays the host, but does
    not count as work of the device, and these delays do not add up.

    busy_seconds, idle_seconds: of the device since the end of the first step, which does not count, as in MLPerf
    Storage.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.num_steps = 0
        self.busy_seconds = self.idle_seconds = 0.0
        self._unfinished: deque[float] = deque(maxlen=_STEPS_AHEAD)  # end times of the last steps
        self._clock, self._sleep = clock, sleep
        self._copied = self._computed = self._idle_since = float("-inf")

    @property
    def utilization(self) -> float | None:
        """Busy share, 0 to 1, from the end of the first step to the end of the last; None before the second step."""
        return share(self.busy_seconds, self.idle_seconds)

    def submit(self, compute_seconds: float, copy_seconds: float = 0.0) -> float:
        """Submit a step: a copy, then a computation that needs the copy. Waits while the queue is full. Returns the
        device's idle seconds before the step, 0 for the first."""
        if len(self._unfinished) == _STEPS_AHEAD:
            self._wait_until(self._unfinished[0])
        self._copied = max(self._copied, self._clock()) + copy_seconds
        began = max(self._computed, self._copied)
        idle_seconds = 0.0
        if self.num_steps:
            idle_seconds = began - self._idle_since
            self.idle_seconds += idle_seconds
            self.busy_seconds += compute_seconds
        self._computed = self._idle_since = began + compute_seconds
        self._unfinished.append(self._computed)
        self.num_steps += 1
        return idle_seconds

    def synchronize(self) -> None:
        """Wait until all steps and copies are done."""
        self._wait_until(max(self._computed, self._copied))

    def pause(self) -> None:
        """Wait until all steps are done, and stop counting idle time until `resume`, due before the next step."""
        if self.num_steps:
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
