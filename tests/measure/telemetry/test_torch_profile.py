from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_opt.measure.telemetry.torch_profile import kernel_seconds


def test_a_gpu_that_only_copies_from_the_host_runs_no_kernel() -> None:
    """With events as torch's profiler gives them on a GPU, in microseconds."""

    def event(name: str, start: float, end: float, device: str = "CUDA", is_user_annotation: bool = False) -> Any:
        device_type, span = SimpleNamespace(name=device), SimpleNamespace(start=start, end=end)
        return SimpleNamespace(
            name=name, device_type=device_type, time_range=span, is_user_annotation=is_user_annotation
        )

    events = [
        event("sm90_xmma_fprop", 0, 100),
        event("Memcpy HtoD (Pinned -> Device)", 50, 400),
        event("Memcpy DtoH (Device -> Pinned)", 700, 800),
        event("Memcpy DtoD (Device -> Device)", 400, 450),
        event("Memset (Device)", 440, 460),
        event("ProfilerStep#1", 0, 1000, is_user_annotation=True),
        event("aten::conv2d", 0, 900, device="CPU"),
    ]
    profile = SimpleNamespace(events=lambda: events)
    assert kernel_seconds(profile, num_steps=2) == pytest.approx(160e-6 / 2)
