"""Times work on the device without making the host wait: each time of training steps is between two `Moment`s."""

import time
from collections import deque

import torch


class Moment:
    """When the device has finished the work that is queued now, in the current CUDA stream; on a CPU, now."""

    def __init__(self, device: torch.device) -> None:
        self._seconds = time.perf_counter()
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True, blocking=True)
            self._event.record()

    def is_reached(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def seconds_since(self, earlier: "Moment") -> float:
        """Waits until this moment is reached."""
        if self._event is None or earlier._event is None:
            return self._seconds - earlier._seconds
        self.wait()
        milliseconds: float = earlier._event.elapsed_time(self._event)
        return milliseconds / 1000


class CudaClock:
    """Times spans on the current CUDA stream, which are read once the device has reached their end. On a CPU there are
    none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pending: deque[tuple[Moment, Moment]] = deque()
        self._started: Moment | None = None

    def start(self) -> None:
        if self._device.type == "cuda":
            self._started = Moment(self._device)

    def stop(self) -> None:
        """End the span that `start` began; does nothing without one."""
        if self._started is not None:
            self._pending.append((self._started, Moment(self._device)))
            self._started = None

    def finished_seconds(self) -> list[float]:
        """Seconds of each span that the device has finished since the last call, oldest first."""
        seconds = []
        while self._pending and self._pending[0][1].is_reached():
            started, ended = self._pending.popleft()
            seconds.append(ended.seconds_since(started))
        return seconds
