"""Networks by name, their options, and what is said of those that do not fit."""

import pytest
import torch

from imagenet_opt.errors import ModelError, UnknownModel
from imagenet_opt.model.network import build_network


def test_the_head_follows_the_number_of_classes() -> None:
    assert build_network("test_resnet", num_classes=7)(torch.zeros(2, 3, 64, 64)).shape == (2, 7)


def test_an_unknown_name_gets_near_ones() -> None:
    with pytest.raises(UnknownModel, match=r"model\.name.*resnet50"):
        build_network("resnet5O", num_classes=10)


def test_blurpool_puts_in_antialiasing_layers() -> None:
    def layers(net: torch.nn.Module) -> set[str]:
        return {type(module).__name__ for module in net.modules()}

    assert "BlurPool2d" in layers(build_network("resnet18", num_classes=10, blurpool=True))
    assert "BlurPool2d" not in layers(build_network("resnet18", num_classes=10))


def test_the_stem_is_small_in_stride_and_kernel_and_learns() -> None:
    small = build_network("resnet18", num_classes=3, small_stem=True)
    small(torch.randn(2, 3, 64, 64)).sum().backward()
    assert small.conv1.weight.shape == (64, 3, 3, 3)
    assert small.conv1.weight.grad.abs().sum() > 0


def test_a_small_stem_keeps_small_images_large() -> None:
    images = torch.zeros(2, 3, 32, 32)
    assert build_network("resnet18", num_classes=10).forward_features(images).shape[-1] == 1
    assert build_network("resnet18", num_classes=10, small_stem=True).forward_features(images).shape[-1] == 4


@pytest.mark.parametrize(
    ("name", "option"), [("test_vit", "blurpool"), ("test_vit", "small_stem"), ("resnet10t", "small_stem")]
)
def test_options_that_a_network_does_not_have_are_told(name: str, option: str) -> None:
    with pytest.raises(ModelError, match=rf"{name} has no .* set model\.{option}=false"):
        build_network(name, num_classes=10, **{option: True})
