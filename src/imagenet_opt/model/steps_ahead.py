"""How many training steps the host queues ahead of the device."""

from collections import deque

import torch


class StepsAhead:
    """Lets the host queue a step once the device has begun the step two before; does nothing on a CPU.

    Every queued step keeps its batch in the device's memory. A step as one CUDA graph has few launches, so CUDA's own
    queue would hold about 15 such steps. The waiting host sleeps, which leaves its CPU to the loader's workers.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._begun: deque[torch.cuda.Event] = deque()

    def begin(self) -> None:
        """Call before a step is queued."""
        if self._on_gpu:
            begun = torch.cuda.Event(blocking=True)
            begun.record()
            self._begun.append(begun)
            if len(self._begun) > 2:
                self._begun.popleft().synchronize()
