"""Model FLOPs utilisation against arithmetic, with the name and the peak of a simulated GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from imagenet_opt.training import mfu as module
from imagenet_opt.training.mfu import mfu

SIDE, CHANNELS = 8, 10
FLOPS = 2 * SIDE**2 * 3 * CHANNELS
"""For a forward pass of one image."""


def trainer(precision: str, *, device: str = "cuda", tf32: bool = False, sizes: tuple[int, ...] = (SIDE,)) -> Any:
    """After as many epochs as `sizes`."""
    sampler = SimpleNamespace(size_of=lambda epoch: sizes[min(epoch, len(sizes) - 1)])
    return SimpleNamespace(
        precision=precision,
        strategy=SimpleNamespace(root_device=torch.device(device)),
        world_size=2,
        callbacks=[SimpleNamespace(tf32=tf32)],
        train_dataloader=SimpleNamespace(sampler=sampler),
        current_epoch=len(sizes),
        lightning_module=SimpleNamespace(net=nn.Conv2d(3, CHANNELS, 1, bias=False)),
    )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An A100, whose name a test may change; the measured peak of other GPUs is 50 TFLOP/s."""
    card = SimpleNamespace(name="NVIDIA A100-SXM4-40GB")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: card.name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    peak = SimpleNamespace(tflops_per_second=50.0)
    monkeypatch.setattr(module, "matmul_peak", lambda device, dtype, seconds: peak)
    return card


@pytest.mark.parametrize(
    ("precision", "tf32", "peak"),
    [("bf16-mixed", True, 312), ("16-mixed", False, 312), ("32-true", True, 156), ("32-true", False, 19.5)],
)
@pytest.mark.usefixtures("gpu")
def test_a_step_counts_three_forward_passes(precision: str, tf32: bool, peak: float) -> None:
    numbers = mfu(trainer(precision, tf32=tf32), 1e9)
    assert numbers["throughput/peak_tflops_per_second"] == 2 * peak
    assert numbers["throughput/mfu_fraction"] == pytest.approx(3 * FLOPS * 1e9 / (2 * peak * 1e12))


@pytest.mark.usefixtures("gpu")
def test_no_mfu_without_a_gpu_a_peak_one_size_and_flops() -> None:
    assert mfu(trainer("bf16-mixed", device="cpu"), 1.0) == {}
    assert mfu(trainer("64-true"), 1.0) == {}
    assert mfu(trainer("bf16-mixed", sizes=(SIDE, 2 * SIDE)), 1.0) == {}
    strange = trainer("bf16-mixed")
    strange.lightning_module.net = nn.Linear(5, 5)  # takes no images
    assert mfu(strange, 1.0) == {}
