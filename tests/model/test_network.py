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


def test_a_small_stem_keeps_small_images_large() -> None:
    images = torch.zeros(2, 3, 32, 32)
    assert build_network("resnet18", num_classes=10).forward_features(images).shape[-1] == 1
    assert build_network("resnet18", num_classes=10, small_stem=True).forward_features(images).shape[-1] == 4


@pytest.mark.parametrize("option", ["blurpool", "small_stem"])
def test_options_that_a_network_does_not_have_are_told(option: str) -> None:
    with pytest.raises(ModelError, match=rf"model\.{option}=false"):
        build_network("test_vit", num_classes=10, **{option: True})
