"""What the host waits for on a real GPU, by the calls that are seen and by CUDA's own account."""

import warnings
from collections import Counter
from pathlib import Path

import torch

from imagenet_opt.measure.telemetry.host_syncs import HostSyncs


def test_cuda_names_the_same_lines() -> None:
    on_device = torch.arange(6.0, device="cuda")
    with HostSyncs() as seen:
        wait(on_device)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            wait(on_device)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    told = [one for one in warned if "synchronizing CUDA operation" in str(one.message)]
    lines = Counter(f"{Path(one.filename).name}:{one.lineno}" for one in told)
    assert lines == {wait.place: count for wait, count in seen.counts.items()}
    assert sorted(lines.values()) == [1, 1, 3]


def wait(on_device: torch.Tensor) -> None:
    for _ in range(3):
        on_device.sum().item()
    on_device.cpu()
    on_device[on_device > 3]
    on_device + 1
