"""Times work on the device without making the host wait."""

from collections import deque

import torch


class CudaClock:
    """Times spans on the current CUDA stream with events, which are read once the device has reached them."""

    def __init__(self) -> None:
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._started: torch.cuda.Event | None = None

    def start(self) -> None:
        self._started = None
        self.lap()

    def stop(self) -> None:
        """End the span that `start` began; does nothing without one."""
        if self._started is not None:
            self.lap()
            self._started = None

    def lap(self) -> None:
        """End the running span, if any, and start the next span at the same moment."""
        now = torch.cuda.Event(enable_timing=True)
        now.record()
        if self._started is not None:
            self._pending.append((self._started, now))
        self._started = now

    def finished_seconds(self) -> list[float]:
        """Seconds of each span that the device has finished since the last call, oldest first."""
        seconds = []
        while self._pending and self._pending[0][1].query():
            started, ended = self._pending.popleft()
            seconds.append(started.elapsed_time(ended) / 1000)
        return seconds
