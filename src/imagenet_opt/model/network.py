"""Networks by their timm name."""

import difflib
from typing import TYPE_CHECKING, Any

import timm
from timm.layers.blur_pool import BlurPool2d
from torch import nn

from imagenet_opt.errors import ModelError, UnknownModel, first_line

if TYPE_CHECKING:  # torch and timm take seconds to import: not before the arguments are right
    from torch import nn


RECIPE = ("name", "num_classes", "blurpool", "small_stem")
"""What `build_network` takes, by its keys in the group model and in checkpoints."""


def build_network(name: str, *, num_classes: int, blurpool: bool = False, small_stem: bool = False) -> nn.Module:
    """timm's network `name`, untrained.

    blurpool: antialiased down-sampling (arXiv 1904.11486). small_stem: for images of about 32 to 96 pixels, a 3x3
    stem without stride or pooling instead of 7x7 with both (ResNets only; arXiv 1512.03385, section 4.2).

    Raises UnknownModel with near names; ModelError for an option that the network does not have.
    """
    _check_name(name)
    options: dict[str, Any] = {"aa_layer": BlurPool2d} if blurpool else {}
    try:
        network: nn.Module = timm.create_model(name, num_classes=num_classes, **options)
    except TypeError as error:
        raise ModelError(f"{name} has no BlurPool variant; set model.blurpool=false ({error})") from error
    if small_stem:
        _shrink_stem(network, name)
    return network


def pretrained_network(name: str) -> nn.Module:
    """timm's network `name` with timm's weights and head. Raises UnknownModel; ModelError if they cannot be fetched."""
    _check_name(name)
    try:
        network: nn.Module = timm.create_model(name, pretrained=True)
    except Exception as error:  # of the hub, the network or the disk, of many types
        raise ModelError(
            f"the weights of {name} (model.pretrained=true) cannot be fetched or opened: {first_line(error)}; they "
            "come from the Hugging Face hub, or from its cache on this machine"
        ) from error
    return network


def _check_name(name: str) -> None:
    if not timm.is_model(name):
        similar = difflib.get_close_matches(name, timm.list_models(), n=5, cutoff=0.5)
        hint = f"near: {', '.join(similar)}" if similar else "see timm.list_models()"
        raise UnknownModel(f"timm has no model {name!r} (model.name); {hint}")


def _shrink_stem(network: nn.Module, name: str) -> None:
    stem = getattr(network, "conv1", None)
    if not isinstance(stem, nn.Conv2d) or not hasattr(network, "maxpool"):
        raise ModelError(f"{name} has no ResNet stem to shrink; set model.small_stem=false")
    small = nn.Conv2d(stem.in_channels, stem.out_channels, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
    network.conv1 = small
    network.maxpool = nn.Identity()
