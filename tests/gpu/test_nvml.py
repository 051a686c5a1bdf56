"""Readings of NVML are of the device that torch uses."""

from time import monotonic

import pytest
import torch

from imagenet_opt.measure.telemetry.gpu import GpuColumns, device_names, read_gpu


def work(seconds: float) -> None:
    """Keep the device busy."""
    matrix = torch.rand(4096, 4096, device="cuda")
    end = monotonic() + seconds
    while monotonic() < end:
        for _ in range(10):
            matrix @ matrix
        torch.cuda.synchronize()


def test_the_reading_is_of_the_device_that_torch_uses() -> None:
    torch.zeros(1, device="cuda")
    before = GpuColumns(*device_names(0)).row()["gpu_memory_used_gib"]
    block = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    after = GpuColumns(*device_names(0)).row()["gpu_memory_used_gib"]
    del block
    assert after - before == pytest.approx(1.0, abs=0.1)
    work(1.5)
    assert GpuColumns(*device_names(0)).row()["gpu_utilization_percent"] > 80


def test_the_state_of_the_device_is_read_while_it_works() -> None:
    work(1.0)
    state = read_gpu(0)
    assert state is not None and state.name in torch.cuda.get_device_name(0)
    assert state.clock_reasons is not None and state.others is not None
