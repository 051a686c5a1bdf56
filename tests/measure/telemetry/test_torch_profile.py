"""Groups and times of the operations in a profile, and gaps between kernels."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from imagenet_opt.measure.telemetry.torch_profile import (
    GROUPS,
    group_of,
    kernel_seconds,
    seconds_of_groups,
)

KINDS = {
    "contraction": "convolution convolution_backward cudnn_convolution _conv_depthwise2d addmm bmm _scaled_mm linear",
    "normalisation": "cudnn_batch_norm native_batch_norm_backward _log_softmax sum var_mean max topk nll_loss_forward",
    "element-wise": "relu_ threshold_backward add_ mul gelu bernoulli_ clamp_min masked_fill maximum eq",
    "copies": "copy_ _to_copy cat fill_ zero_ ones_like",
    "optimizer": "_fused_sgd_ _foreach_add_ _amp_foreach_non_finite_check_and_unscale_",
    "rest": "empty view upsample_bilinear2d normal_ item",
}


def test_the_group_follows_from_the_name() -> None:
    for group in GROUPS:
        for name in KINDS[group].split():
            assert group_of(f"aten::{name}") == group_of(f"aten.{name}.default") == group, name
    assert group_of("Optimizer.step#SGD.step") == "optimizer"
    for name in ("autograd::engine::evaluate_function: ConvolutionBackward0", "AddBackward0", "mine::conv2d", "x"):
        assert group_of(name) == "rest"


def test_a_profile_has_the_time_of_each_group() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    images = torch.randn(4, 3, 8, 8)

    def step() -> None:
        optimizer.zero_grad()
        net(images).sum().backward()
        optimizer.step()

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
        step()
    seconds = seconds_of_groups(profile, num_steps=2, on_gpu=False)
    assert all(seconds[group] > 0 for group in ("contraction", "normalisation", "element-wise", "optimizer"))
    total = sum(event.self_cpu_time_total for event in profile.key_averages()) / 1e6 / 2
    assert sum(seconds.values()) == pytest.approx(total)
    assert kernel_seconds(profile, num_steps=2) == 0
    assert not any(seconds_of_groups(profile, num_steps=2, on_gpu=True).values())


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
