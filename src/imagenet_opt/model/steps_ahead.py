"""How many training steps the host queues ahead of the device."""

from collections import deque

import torch

from imagenet_opt.measure.telemetry.cuda_clock import Moment


class StepsAhead:
    """Lets the host queue a step once the device has begun the step two before; never waits on a CPU.

    Every queued step keeps its batch in the device's memory. A step as one CUDA graph has few launches, so CUDA's own
    queue would hold about 15 such steps. The waiting host sleeps, which leaves its CPU to the loader's workers.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begun: deque[Moment] = deque()

    def begin(self) -> None:
        """Call before a step is queued."""
        self._begun.append(Moment(self._device))
        if len(self._begun) > 2:
            self._begun.popleft().wait()
