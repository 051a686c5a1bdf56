"""Times of the kernels in a profile of training steps."""

import math
from collections.abc import Iterable
from typing import Any

PERMISSION = (
    "CUPTI needs permission: start the container with --cap-add=SYS_ADMIN, or load NVIDIA's driver with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)
"""Remedy when the profiler sees no kernels, as in containers without the right to profile."""


_HOST_COPIES = ("Memcpy HtoD", "Memcpy DtoH")
"""Beginnings of names that Kineto gives to copies. Source: `memcpyName` in pytorch/kineto, CuptiActivity.cpp."""


def kernel_seconds(profile: Any, *, num_steps: int) -> float:
    """Seconds per step in which the GPU ran at least one kernel; 0 without kernels. Copies between host and GPU do not
    count: they leave the GPU's processors idle. Copies within the GPU and fills do."""
    events = [event for event in profile.events() if event.device_type.name == "CUDA"]
    kernels = [
        event.time_range
        for event in events
        if not event.is_user_annotation and not event.name.startswith(_HOST_COPIES)  # an annotation spans many kernels
    ]
    return covered([(span.start, span.end) for span in kernels]) / 1e6 / num_steps


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of the spans (begin, end)."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
