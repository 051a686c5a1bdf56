import pytest
import torch
from torch import nn

from imagenet_opt.doctor.environment.tensor_cores import check_precision
from imagenet_opt.measure.telemetry.dtypes import convolutions_take_tf32, precision_of_convolutions


def step(autocast: bool) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = net(torch.rand(2, 3, 8, 8)).float().sum()
    loss.backward()


def test_forward_and_backward_are_seen_in_the_dtype_that_they_run_in() -> None:
    """Two convolutions each way; a linear layer and the two products of its backward."""
    assert precision_of_convolutions(lambda: step(False)) == {"convolution float32": 4, "matmul float32": 3}
    assert precision_of_convolutions(lambda: step(True)) == {"convolution bfloat16": 4, "matmul bfloat16": 3}


def test_a_layer_kept_in_float32_shows() -> None:
    def mixed() -> None:
        step(True)
        step(False)

    seen = precision_of_convolutions(mixed)
    found = check_precision(seen, precision="bf16-mixed", capability=(8, 6), conv_tf32=False)
    assert found.fired and "4 of 8 convolutions" in found.evidence


FLOAT32 = {"convolution float32": 159, "matmul float32": 3}


def test_float32_convolutions_need_tf32_or_16_bits() -> None:
    found = check_precision(FLOAT32, precision="32-true", capability=(8, 6), conv_tf32=False)
    assert found.fired and found.overrides == ("trainer.precision=mixed", "callbacks.acceleration.tf32=true")
    assert check_precision(FLOAT32, precision="32-true", capability=(8, 6), conv_tf32=True).fired is False


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


def test_before_ampere_there_is_no_tf32_to_switch_on() -> None:
    found = check_precision(FLOAT32, precision="32-true", capability=(7, 5), conv_tf32=True)
    assert found.fired and found.overrides == ("trainer.precision=mixed",)


def test_nothing_is_said_of_a_cpu_or_a_step_without_convolutions() -> None:
    assert check_precision(FLOAT32, precision="32-true", capability=None, conv_tf32=False).fired is None
    assert check_precision({"matmul float32": 1}, precision="32-true", capability=(9, 0), conv_tf32=False).fired is None
