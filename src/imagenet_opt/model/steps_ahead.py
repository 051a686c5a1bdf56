"""How far the host may run ahead of the device."""

from collections import deque

import torch

_MOST = 2


class StepsAhead:
    """Lets the host queue a step once the device has begun the step two before; on a CPU it does nothing.

    Every queued step holds its batch in the device's memory. A step that is one CUDA graph is few launches, and CUDA's
    own queue would take about 15 such steps. A host that waits here sleeps, and leaves its CPU to the loader's workers.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._begun: deque[torch.cuda.Event] = deque()

    def begin(self) -> None:
        """Call it before a step is queued."""
        if not self._on_gpu:
            return
        begun = torch.cuda.Event(blocking=True)
        begun.record()
        self._begun.append(begun)
        if len(self._begun) > _MOST:
            self._begun.popleft().synchronize()
