"""What a fit and its device do in each step: when the device ends the step, and where the host waits for it."""

from collections import Counter
from contextlib import ExitStack
from typing import Any

import torch

from imagenet_opt.measure.telemetry.cuda_clock import CudaClock
from imagenet_opt.measure.telemetry.host_syncs import HostSyncs
from imagenet_opt.run.hook_timer import FETCH, STEP, HookTimer


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


class StepWaits:
    """Counts where the host waits for the device in ordinary steps.

    places: number of waits by "operation at file:line". num_ordinary: number of counted steps. simulated: callback of a
    simulated device, which counts its own waits, or None. sees_gpu: whether to count waits for a GPU, from the end of
    one fetch to the start of the next fetch. is_ordinary: False after a logging step, which queues a row of metrics.
    """

    def __init__(self, clock: HookTimer, simulated: Any, *, sees_gpu: bool) -> None:
        self.places: Counter[str] = Counter()
        self.num_ordinary = 0
        self.is_ordinary = False
        self._simulated = simulated
        self._waits = HostSyncs()
        self._is_blind = simulated is None and not sees_gpu
        self._counting = ExitStack()
        self._before: Counter[str] = Counter()
        if simulated is None and sees_gpu:
            clock.started.append(self._fetch_begins)
            clock.stopped.append(self._fetch_ends)

    def note(self) -> None:
        """Call at the start of a step: adds the waits of the last step, if the last step was ordinary."""
        if self._is_blind:
            return
        waits = self._waits if self._simulated is None else self._simulated.waits
        places = Counter({f"{wait.operation} at {wait.place}": num for wait, num in waits.counts.items()})
        if self.is_ordinary:
            self.places += places - self._before
            self.num_ordinary += 1
        self._before, self.is_ordinary = places, False

    def stop(self) -> None:
        self._counting.close()

    def _fetch_begins(self, action: str) -> None:
        if action == FETCH:
            self.stop()

    def _fetch_ends(self, action: str, began: float, ended: float) -> None:
        if action == FETCH:
            self._counting.enter_context(self._waits)
