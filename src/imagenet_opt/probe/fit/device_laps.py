"""Times the steps of a fit, and how long the device computes in them."""

from typing import Any

import torch

from imagenet_opt.measure.telemetry.cuda_clock import CudaClock
from imagenet_opt.run.hook_timer import STEP, HookTimer


class DeviceLaps:
    """Uses the GPU's clock on a GPU, because the host launches steps ahead of the GPU; otherwise the host's clock.

    simulated: the callback of a simulated device, whose timeline counts the seconds, or None.
    """

    def __init__(self, clock: HookTimer, simulated: Any, *, on_gpu: bool) -> None:
        self._clock, self._simulated = clock, simulated
        self._busy_clock = CudaClock() if on_gpu else None
        self._step_clock = CudaClock() if on_gpu else None
        self._busy_seconds = 0.0

    def start_step(self, *, waits: bool) -> None:
        """waits: whether to wait until the GPU has finished earlier work."""
        if self._busy_clock is not None:
            if waits:
                torch.cuda.synchronize()
            self._busy_clock.start()

    def stop_step(self) -> None:
        if self._busy_clock is not None:
            self._busy_clock.stop()

    def begin(self) -> None:
        """Start the next lap now and forget earlier laps."""
        if self._step_clock is not None:
            self._step_clock = CudaClock()
            self._step_clock.lap()

    def note_lap(self, stamps: list[float], now: float) -> None:
        """Append the end of this step; on a GPU, the ends of the steps that the GPU has finished by now."""
        if self._step_clock is None:
            stamps.append(now)
        else:
            self._step_clock.lap()
            self.note_finished(stamps)

    def note_finished(self, stamps: list[float]) -> None:
        if self._step_clock is not None:
            for seconds in self._step_clock.finished_seconds():
                stamps.append(stamps[-1] + seconds)

    def busy_seconds(self) -> float:
        """Seconds that the device has computed so far, on a CPU those of the training steps; waits for a GPU."""
        if self._simulated is not None:
            return float(self._simulated.timeline.busy_seconds)
        if self._busy_clock is not None:
            torch.cuda.synchronize()
            self._busy_seconds += sum(self._busy_clock.finished_seconds())
            return self._busy_seconds
        return self._clock.seconds[STEP]
