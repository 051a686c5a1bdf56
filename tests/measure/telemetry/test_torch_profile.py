"""Groups and times of the operations in a profile, and gaps between kernels."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from imagenet_opt.measure.telemetry.torch_profile import (
    GROUPS,
    LaunchGaps,
    covered,
    group_of,
    kernel_seconds,
    timed_operations,
)

KINDS = {
    "contraction": """convolution mkldnn_convolution cudnn_convolution convolution_backward conv2d _conv_depthwise2d mm
        addmm bmm baddbmm addmm_ _scaled_mm linear mkldnn_linear linear_backward matmul thnn_conv2d miopen_convolution
        scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu_backward""",
    "normalisation": """batch_norm native_batch_norm cudnn_batch_norm native_batch_norm_backward native_layer_norm
        native_group_norm _batch_norm_impl_index _native_batch_norm_legit_functional _log_softmax softmax sum mean
        _softmax_backward_data var_mean max amax argmax topk max_pool2d_with_indices _adaptive_avg_pool2d_backward
        nll_loss_forward nll_loss2d_backward cross_entropy_loss linalg_vector_norm _fused_rms_norm""",
    "element-wise": """relu relu_ threshold_backward add add_ sub rsub mul div_ gelu silu_backward sigmoid
        native_dropout bernoulli_ where clamp_min sqrt addcmul_ lerp_ masked_fill maximum leaky_relu
        hardtanh_backward eq log exp""",
    "copies": "copy_ _to_copy clone contiguous cat stack fill_ zero_ zeros zeros_like ones_like",
    "optimizer": "_fused_sgd_ _fused_adamw_ _foreach_add_ _foreach_mul_ _amp_foreach_non_finite_check_and_unscale_",
    "rest": "empty view t expand as_strided detach resize_ upsample_bilinear2d normal_ to item",
}


@pytest.mark.parametrize("group", GROUPS)
def test_the_group_follows_from_the_name(group: str) -> None:
    for name in KINDS[group].split():
        assert group_of(f"aten::{name}") == group_of(f"aten.{name}.default") == group, name


def test_names_of_others() -> None:
    assert group_of("Optimizer.step#SGD.step") == "optimizer"
    for name in ("autograd::engine::evaluate_function: ConvolutionBackward0", "AddBackward0", "mine::conv2d", "x"):
        assert group_of(name) == "rest"


def test_a_profile_has_the_time_and_the_group_of_each_operation() -> None:
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
    operations = timed_operations(profile, num_steps=2, on_gpu=False)
    assert [one.seconds for one in operations] == sorted((one.seconds for one in operations), reverse=True)
    calls = {(one.name, one.group): one.num_calls for one in operations}
    assert calls["aten::convolution_backward", "contraction"] == calls["aten::addmm", "contraction"] == 1
    assert calls["aten::native_batch_norm", "normalisation"] == 1
    updates = calls["aten::add_", "optimizer"]  # one of each of 6 parameters, beside those of the batch norm's counter
    assert updates >= 6 and ("aten::mul_", "element-wise") not in calls
    total = sum(event.self_cpu_time_total for event in profile.key_averages()) / 1e6 / 2
    assert sum(one.seconds for one in operations) == pytest.approx(total)
    assert kernel_seconds(profile, num_steps=2) == 0
    assert timed_operations(profile, num_steps=2, on_gpu=True) == []


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


def test_a_forward_within_the_optimizers_step_is_not_part_of_the_optimizer() -> None:
    """As Lightning's automatic optimization calls it."""
    layer = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)

    def closure() -> torch.Tensor:
        loss = layer(torch.ones(2, 8)).relu().sum()
        loss.backward()
        return loss

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step(closure)
    groups = {(one.name, one.group) for one in timed_operations(profile, num_steps=1, on_gpu=False)}
    assert {("aten::addmm", "contraction"), ("aten::relu", "element-wise"), ("aten::add_", "optimizer")} <= groups
    assert ("Optimizer.step#SGD.step", "rest") in groups


def test_overlapping_spans_count_once() -> None:
    assert covered([]) == 0
    assert covered([(5.0, 6.0), (0.0, 3.0), (1.0, 2.0), (2.5, 4.0), (4.0, 4.5)]) == 4.5 + 1.0


@pytest.mark.parametrize(
    ("step_seconds", "kernel_seconds", "gaps", "sentence"),
    [
        (
            0.02,
            0.016,
            (0.004, 0.2, 1.25),
            "no kernel runs in 20.0 % of a step (4.0 of 20.0 ms), because launches are late: closing the gaps gives "
            "at most 1.25 times the speed, with callbacks.acceleration.cuda_graph=true or compile=true",
        ),
        (1.0, 0.96, (0.04, 0.04, 1 / 0.96), "no kernel runs in 4.0 % of a step (40.0 of 1000.0 ms), because"),
        (1.0, 0.98, (0.02, 0.02, 1 / 0.98), "no kernel runs in only 2.0 % of a step: closing the gaps"),
        (1.0, 1.1, (0.0, 0.0, 1.0), "no kernel runs in only 0.0 % of a step: closing the gaps"),
    ],
    ids=["gaps", "above 3 %", "below 3 %", "kernels side by side"],
)
def test_gaps_bound_the_gain(
    step_seconds: float, kernel_seconds: float, gaps: tuple[float, float, float], sentence: str
) -> None:
    launch = LaunchGaps(step_seconds, kernel_seconds)
    assert (launch.gap_seconds, launch.gap_share, launch.most_gain) == pytest.approx(gaps)
    assert launch.sentence().startswith(sentence)


@pytest.mark.parametrize("seconds", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_seconds_must_be_above_0(seconds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        LaunchGaps(*seconds)
