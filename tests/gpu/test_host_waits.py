"""What the host waits for on a real GPU, by the calls that are seen and by CUDA's own account."""

import torch

from imagenet_opt.measure.host_waits import HostWaits, cuda_sync_warnings


def test_only_tensors_on_the_device_wait() -> None:
    on_device, on_host = torch.arange(6.0, device="cuda"), torch.arange(6.0)
    pinned = torch.empty(6, pin_memory=True)
    copied: list[int] = []
    with HostWaits(copied.append) as waits:
        on_host.sum().item()
        on_device.to(torch.float64)
        pinned.copy_(on_device, non_blocking=True)
        on_device[on_device > 3] = 0.0
        on_device.to("cuda")
        assert not waits.found
        on_device.sum().item()
        on_device.to(torch.device("cpu"))
        on_device.nonzero()
        on_host.to("cuda")
    assert [wait.operation for wait in waits.found] == ["item", "to", "nonzero", "to"]
    assert copied == [4, 24, 8, 24]


def test_cuda_names_the_same_lines() -> None:
    on_device = torch.arange(6.0, device="cuda")
    mode = torch.cuda.get_sync_debug_mode()
    with HostWaits() as seen, cuda_sync_warnings() as warned:
        for _ in range(3):
            on_device.sum().item()
        on_device.cpu()
        on_device[on_device > 3]
        on_device + 1
    assert {wait.place: count for wait, count in warned.items()} == {w.place: count for w, count in seen.found.items()}
    assert {wait.operation for wait in warned} == {"synchronize"}
    assert sorted(warned.values()) == [1, 1, 3]
    assert torch.cuda.get_sync_debug_mode() == mode
