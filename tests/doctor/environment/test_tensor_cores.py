from typing import Any

import pytest
import torch
from torch import nn

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.tensor_cores import check_channels_last, check_multiples, check_precision
from imagenet_opt.measure.telemetry.dtypes import convolutions_take_tf32, precision_of_convolutions

FLOAT32 = {"convolution float32": 159, "matmul float32": 3}


def multiples(**changes: Any) -> Finding:
    usual = {"has_gpu": True, "precision": "bf16-mixed", "batch_size": 256, "num_classes": 1000}
    return check_multiples(**{**usual, "channels": (64, 256, 1000), **changes})


@pytest.mark.parametrize(
    ("changes", "fired"),
    [
        ({}, False),
        ({"batch_size": 250}, True),
        ({"num_classes": 1001}, True),
        ({"channels": (64, 90)}, True),
        ({"batch_size": 252, "precision": "32-true"}, False),  # TF32 needs multiples of 4
        ({"batch_size": 250, "precision": "32-true"}, True),
        ({"batch_size": 250, "precision": "64-true"}, None),
        ({"batch_size": 250, "has_gpu": False}, None),
    ],
)
def test_sizes_are_compared_with_the_multiples_of_the_precision(changes: dict[str, Any], fired: bool | None) -> None:
    assert multiples(**changes).fired is fired


def test_only_the_batch_size_has_an_override_and_preferred_sizes_do_not_fire() -> None:
    assert multiples(batch_size=250).overrides == ("data.batch_size=256",)
    other = multiples(num_classes=37)
    assert "classes 37" in other.evidence and not other.overrides
    preferred = multiples(batch_size=200)
    assert preferred.fired is False and "not of 64" in preferred.evidence and "200, 1000" in preferred.evidence


def test_channels_last_matters_on_a_gpu() -> None:
    finding = check_channels_last(has_gpu=True, precision="bf16-mixed", channels_last=False)
    assert finding.fired and finding.overrides == ("callbacks.acceleration.channels_last=true",)
    assert check_channels_last(has_gpu=True, precision="bf16-mixed", channels_last=True).fired is False
    assert check_channels_last(has_gpu=False, precision="bf16-mixed", channels_last=False).fired is None


def step(autocast: bool) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = net(torch.rand(2, 3, 8, 8)).float().sum()
    loss.backward()


def test_forward_and_backward_are_recorded_in_their_dtypes() -> None:
    """Two convolutions each way; a linear layer and the two products of its backward."""
    assert precision_of_convolutions(lambda: step(False)) == {"convolution float32": 4, "matmul float32": 3}
    assert precision_of_convolutions(lambda: step(True)) == {"convolution bfloat16": 4, "matmul bfloat16": 3}
    mixed = precision_of_convolutions(lambda: [step(autocast) for autocast in (True, False)])
    finding = check_precision(mixed, precision="bf16-mixed", capability=(8, 6), conv_tf32=False)
    assert finding.fired and "4 of 8 convolutions" in finding.evidence


@pytest.mark.parametrize(
    ("dtypes", "capability", "conv_tf32", "overrides"),
    [
        (FLOAT32, (8, 6), False, ("trainer.precision=mixed", "callbacks.acceleration.tf32=true")),
        (FLOAT32, (8, 6), True, False),
        (FLOAT32, (7, 5), True, ("trainer.precision=mixed",)),  # before Ampere there is no TF32
        (FLOAT32, None, False, None),
        ({"matmul float32": 1}, (9, 0), False, None),
    ],
)
def test_float32_convolutions_need_tf32_or_16_bits(
    dtypes: dict[str, int], capability: tuple[int, int] | None, conv_tf32: bool, overrides: Any
) -> None:
    """overrides: of the finding that fires, else `Finding.fired`."""
    finding = check_precision(dtypes, precision="32-true", capability=capability, conv_tf32=conv_tf32)
    assert (finding.overrides if finding.fired else finding.fired) == overrides


@pytest.mark.parametrize("on", [True, False])
def test_tf32_is_read_from_torch_by_its_old_switch_and_its_new_one(on: bool) -> None:
    cudnn, before = torch.backends.cudnn, torch.backends.cudnn.allow_tf32
    try:
        cudnn.allow_tf32 = on
        assert convolutions_take_tf32() is on
        cudnn.conv.fp32_precision = "ieee" if on else "tf32"  # type: ignore[attr-defined]
        assert convolutions_take_tf32() is not on
    finally:
        cudnn.allow_tf32 = before  # of convolutions and RNNs
    assert cudnn.allow_tf32 == before
