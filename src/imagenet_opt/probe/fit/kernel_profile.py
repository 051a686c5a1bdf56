"""Measures with the profiler how long the kernels of a step run."""

import torch

from imagenet_opt.measure.telemetry.torch_profile import kernel_seconds

_PROFILED_STEPS = 5


class KernelProfile:
    """Measures with the profiler how long kernels run in a step, from the first call of `step` to the last."""

    def __init__(self) -> None:
        self._profiler: torch.profiler.profile | None = None
        self._num_steps = 0

    def step(self) -> bool:
        """Call at the end of each step; returns True once enough steps are profiled."""
        if self._profiler is None:
            self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profiler.start()
        else:
            self._num_steps += 1
        return self._num_steps >= _PROFILED_STEPS

    def stop(self) -> float | None:
        """Seconds per step in which kernels ran; None if no step was profiled or no kernel was observed."""
        if self._profiler is None:
            return None
        torch.cuda.synchronize()
        self._profiler.stop()
        return (kernel_seconds(self._profiler, num_steps=self._num_steps) or None) if self._num_steps else None
