"""Where the host waits for the device in the steps of a fit."""

from collections import Counter
from contextlib import ExitStack
from typing import Any

from imagenet_opt.measure.telemetry.host_syncs import HostSyncs
from imagenet_opt.run.hook_timer import FETCH, HookTimer


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
