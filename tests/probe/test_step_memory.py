"""The memory of a step, against measured and computed values."""

from functools import partial

import pytest
import timm
import torch
from torch import nn
from torch.optim import SGD

from imagenet_opt.probe.step_memory import StepMemory, StepSetting, step_memory


def sgd(net: nn.Module) -> SGD:
    return SGD(net.parameters(), lr=0.1, momentum=0.9)


def test_resnet_50_needs_the_memory_of_another_program() -> None:
    """11.6 GB at 256 images and 17.2 GB at 384: bfloat16 by autocast, channels_last, SGD with momentum."""
    with torch.device("meta"):
        net = timm.create_model("resnet50")
    setting = StepSetting(image_size=224, autocast=torch.bfloat16, channels_last=True)
    need = step_memory(net, sgd, setting, batch_size=256)
    assert need.num_bytes == pytest.approx(11.56e9, rel=0.01)
    assert need.num_bytes + 128 * need.bytes_per_image == pytest.approx(17.22e9, rel=0.01)


@pytest.mark.parametrize("num", [64, 8192])
def test_two_layers_need_the_memory_computed_by_hand(num: int) -> None:
    """float32: 4 bytes a value. With few images the peak is at the gradient of the first weights. With many images the
    peak is in the backward of ReLU, with its output, the output's gradient and the input's gradient."""
    pixels, hidden, classes = 3 * 16 * 16, 1024, 128
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, classes, bias=False)
    )
    need = step_memory(net, sgd, StepSetting(image_size=16), batch_size=num)
    first, second = 4 * pixels * hidden, 4 * hidden * classes
    weights_and_momentum = 2 * (first + second)
    batch, logits, activations = 4 * pixels + 8, 4 * classes + 4, 4 * hidden
    few = weights_and_momentum + second + first + num * (batch + logits + activations)
    many = weights_and_momentum + second + num * (batch + logits + 3 * activations)
    assert need.num_bytes == pytest.approx(max(few, many), rel=0.001)
    assert need.bytes_per_image == pytest.approx(batch + logits + (1 if num == 64 else 3) * activations, rel=0.001)


def test_settings_that_save_memory() -> None:
    net = timm.create_model("test_resnet", num_classes=3)
    need = partial(step_memory, net, sgd, batch_size=128)
    usual = need(StepSetting(image_size=64))
    checkpointing = need(StepSetting(image_size=64, gradient_checkpointing=True))
    assert checkpointing.bytes_per_image < 0.95 * usual.bytes_per_image
    half = need(StepSetting(image_size=64, autocast=torch.bfloat16))
    assert half.bytes_per_image < 0.7 * usual.bytes_per_image
    parts = need(StepSetting(image_size=64), micro_batch_size=32)
    small = need(StepSetting(image_size=64), batch_size=32)
    assert small.num_bytes < parts.num_bytes < 0.5 * usual.num_bytes, "the other images and the gradients wait"


def test_neither_network_nor_random_state_change() -> None:
    net = timm.create_model("test_resnet", num_classes=3, drop_rate=0.5).eval()
    before, random = {name: tensor.clone() for name, tensor in net.state_dict().items()}, torch.get_rng_state()
    step_memory(net, sgd, StepSetting(image_size=32, gradient_checkpointing=True), batch_size=4)
    assert torch.equal(torch.get_rng_state(), random) and not net.training and not net.grad_checkpointing
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize(("room", "num"), [(1000, 10), (1119, 10), (1120, 11), (900, 9), (100, 2), (-260, 0)])
def test_the_line_gives_the_images_for_a_memory(room: int, num: int) -> None:
    assert StepMemory(num_images=10, num_bytes=1000, bytes_per_image=120.0).most_images(room) == num
