"""Networks by their timm name, and their parts that are not trained."""

import copy
import inspect
from collections.abc import Mapping
from ssl import SSLError
from types import MappingProxyType
from typing import Annotated, Any, Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import timm
import torch
from huggingface_hub import constants
from pydantic import Field
from timm.layers.blur_pool import BlurPool2d
from torch import Tensor, nn
from torch.nn.functional import conv2d

from imagenet_opt.errors import ConfigError, ModelError, UnknownModel, did_you_mean, first_line

RECIPE = ("name", "num_classes", "blurpool", "small_stem", "options")
"""Arguments of `build_network` that are keys of the group model and of checkpoints."""
STARTING = ("zero_init_last", "drop_path_rate")
"""Arguments of `build_network` for training only: a trained network does not need them."""
_OWN_KEYS = {
    "num_classes": "model.num_classes",
    "drop_path_rate": "model.drop_path_rate",
    "zero_init_last": "model.zero_init_last",
    "aa_layer": "model.blurpool",
    "device": "trainer.accelerator",
    "dtype": "trainer.precision",
}
"""Arguments of timm's networks -> the keys that set them."""
Options = Mapping[str, bool | int | float | str | None] | None


def build_network(
    name: str,
    *,
    num_classes: int,
    blurpool: bool | Literal["strided_convs"] = False,
    small_stem: bool = False,
    options: Options = MappingProxyType({}),
    zero_init_last: bool = True,
    drop_path_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0,
) -> nn.Module:
    """timm's network `name`, untrained.

    blurpool: antialiased down-sampling (arXiv 1904.11486). True: timm's layers, after each convolution and in the
    stem's pooling. "strided_convs": before each convolution with a stride and 16 input channels or more (FFCV).
    small_stem: for images of about 32 to 96 pixels, a 3x3 stem without stride or pooling instead of 7x7 with both
    (ResNets only; arXiv 1512.03385, section 4.2). zero_init_last: whether a ResNet's blocks begin as identities, with a
    weight of 0 in their last norm (arXiv 1706.02677). drop_path_rate: largest rate of stochastic depth (arXiv
    1603.09382). options: further arguments of timm's network, such as img_size, drop_rate, global_pool or
    ls_init_value; None: timm's default.

    Raises UnknownModel and ConfigError with near names; ModelError for an option that the network does not have.
    """
    arguments = check_options(name, options)
    if blurpool is True:
        arguments["aa_layer"] = BlurPool2d
    if not zero_init_last:
        arguments["zero_init_last"] = False
    if drop_path_rate:
        arguments["drop_path_rate"] = drop_path_rate
    try:
        network: nn.Module = timm.create_model(name, num_classes=num_classes, **arguments)
    except TypeError as error:
        raise ModelError(
            f"{name} has not all of these options; set model.blurpool=false, model.zero_init_last=true, "
            f"model.drop_path_rate=0 or model.options={{}} ({error})"
        ) from error
    except (AssertionError, ValueError, RuntimeError) as error:
        if not options:
            raise
        words = ", ".join(f"{key}={value}" for key, value in options.items())
        raise ModelError(f"{name} cannot be built with {words} (model.options): {first_line(error)}") from error
    if blurpool == "strided_convs":
        _blur_strided_convs(network, name)
    if small_stem:
        _shrink_stem(network, name)
    return network


def check_options(name: str, options: Options) -> dict[str, Any]:
    """The options as a new dict. Raises UnknownModel; ConfigError for an option that is no argument of the network, or
    that another key sets."""
    _check_name(name)
    options = dict(options or {})
    for option in options:
        if option in _OWN_KEYS:
            raise ConfigError(f"model.options.{option} has no effect here; set {_OWN_KEYS[option]}")
    if options:
        with torch.device("meta"):
            known = inspect.signature(type(timm.create_model(name))).parameters
        usable = sorted(known.keys() - _OWN_KEYS.keys() - {"in_chans", "cfg"})
        for option in options.keys() - set(usable):
            hint = did_you_mean(option, usable, f"it has {', '.join(usable)}")
            raise ConfigError(f"{name} has no option {option} (model.options.{option}); {hint}")
    return options


def pretrained_network(name: str, options: Options = MappingProxyType({})) -> nn.Module:
    """timm's network `name` with timm's weights and head. Raises UnknownModel; ModelError if they cannot be fetched."""
    arguments, is_offline = check_options(name, options), constants.HF_HUB_OFFLINE
    try:
        constants.HF_HUB_OFFLINE = is_offline or not _hub_answers()
        network: nn.Module = timm.create_model(name, pretrained=True, **arguments)
    except Exception as error:  # of the hub, the network or the disk, of many types
        raise ModelError(
            f"model.pretrained=true: the weights of {name} could not be fetched from the Hugging Face hub "
            f"({first_line(error)}) and are not usable in its cache, {constants.HF_HUB_CACHE}; copy them there, or set "
            "model.pretrained=false and model.init_from=FILE"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = is_offline
    return network


def _hub_answers() -> bool:
    """Ask once. The hub's own client asks twelve times, for 48 seconds without a network, before it reads its cache."""
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=10).close()
    except HTTPError:
        return True
    except OSError as error:
        return isinstance(getattr(error, "reason", None), SSLError)  # its client may have other certificates
    return True


def check_image_size(network: nn.Module, size: int) -> None:
    """Raises ConfigError for a network that takes images of another size only, as many transformers do."""
    facts: dict[str, Any] = getattr(network, "pretrained_cfg", {})
    if not facts.get("fixed_input_size"):
        return
    try:
        with torch.no_grad():
            copy.deepcopy(network).to("meta").eval()(torch.empty(1, 3, size, size, device="meta"))
    except AssertionError as error:  # of timm
        raise ConfigError(
            f"the network takes no images of {size} pixels (data.image_size, data.val_image_size, eval=): "
            f"{first_line(error)} Set the size to {facts['input_size'][-1]}, add model.options.img_size={size} for a "
            "network of that size, or choose another network"
        ) from error


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm, nn.LayerNorm)


def frozen_parts(network: nn.Module, freeze: str | None) -> list[str]:
    """Stop the gradients of the parts that are not trained, and return the names of these parts.

    freeze: None for nothing; "all_but_head"; "all_but_head_and_last_norm", whose statistics change too (FixRes, arXiv
    1906.06423); or the name of a part such as "layer2", with all parts before it. Parameters of no part, such as class
    tokens, count as before all parts. Raises ConfigError for an unknown part.
    """
    if freeze is None:
        return []
    trained = _trained_parts(network, freeze)
    weights = {id(weight) for part in trained for weight in part.parameters()}
    for weight in network.parameters():
        weight.requires_grad_(id(weight) in weights)
    outside = _outside(network, trained)
    return [name for name, part in network.named_modules() if part in outside]


def _trained_parts(network: nn.Module, freeze: str) -> list[nn.Module]:
    head: Any = network.get_classifier()  # type: ignore[operator]
    heads: list[nn.Module] = list(head) if isinstance(head, tuple) else [head]  # distilled networks have two
    if freeze == "all_but_head":
        return heads
    if freeze == "all_but_head_and_last_norm":
        layers = network.named_modules()  # timm lists the norm of a block's shortcut last
        norms = [layer for name, layer in layers if isinstance(layer, NORMS) and "downsample" not in name]
        return heads + norms[-1:]
    parts = dict(network.named_children())
    usable = [name for name, part in parts.items() if not any(layer in heads for layer in part.modules())]
    if freeze not in usable:
        names = ", ".join(name for name in usable if list(parts[name].parameters()))
        raise ConfigError(f"model.freeze={freeze} must be all_but_head, all_but_head_and_last_norm or one of {names}")
    return list(parts.values())[list(parts).index(freeze) + 1 :]


def _outside(part: nn.Module, trained: list[nn.Module]) -> list[nn.Module]:
    """The largest parts that contain no trained part."""
    if part in trained:
        return []
    if not any(layer in trained for layer in part.modules()):
        return [part]
    return [outside for child in part.children() for outside in _outside(child, trained)]


def _check_name(name: str) -> None:
    architecture, _, tag = name.partition(".")
    if timm.is_model(name):
        known = timm.list_pretrained(f"{architecture}.*")
        if tag and name not in known:
            raise UnknownModel(f"timm has no weights {name!r} (model.name); it has {', '.join(known) or 'no others'}")
    else:
        hint = did_you_mean(name, timm.list_models(), "see timm.list_models()")
        raise UnknownModel(f"timm has no model {name!r} (model.name); {hint}")


class BlurredConv2d(nn.Conv2d):
    """A convolution of images that are blurred with a 3x3 binomial filter. Source: ffcv-imagenet, BlurPoolConv2d."""

    blur: Tensor
    """(in_channels, 1, 3, 3). A buffer, outside of checkpoints: a filter made in the forward would be a copy from the
    host, which no CUDA graph captures."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(conv2d(images, self.blur, padding=1, groups=self.in_channels))


def _blur_strided_convs(network: nn.Module, name: str) -> None:
    """Blur in front of the convolutions that FFCV's recipe blurs; names of weights do not change."""
    convs = [m for m in network.modules() if type(m) is nn.Conv2d and max(m.stride) > 1 and m.in_channels >= 16]
    if not convs:
        raise ModelError(f"{name} has no convolutions to blur; set model.blurpool=false")
    line = torch.tensor([0.25, 0.5, 0.25])
    for conv in convs:
        conv.__class__ = BlurredConv2d
        blur = torch.outer(line, line).repeat(conv.in_channels, 1, 1, 1)
        conv.register_buffer("blur", blur.to(conv.weight), persistent=False)


def _shrink_stem(network: nn.Module, name: str) -> None:
    stem = getattr(network, "conv1", None)
    if not isinstance(stem, nn.Conv2d) or not hasattr(network, "maxpool"):
        raise ModelError(f"{name} has no ResNet stem to shrink; set model.small_stem=false")
    small = nn.Conv2d(stem.in_channels, stem.out_channels, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
    network.conv1 = small
    network.maxpool = nn.Identity()
