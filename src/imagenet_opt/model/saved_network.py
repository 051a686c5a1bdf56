"""Opens the network of a checkpoint."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from imagenet_opt.errors import CheckpointError, ModelError, first_line
from imagenet_opt.model import foreign_checkpoint
from imagenet_opt.model.network import RECIPE, build_network
from imagenet_opt.run.checkpoint import files as checkpoints

VALIDATED_WITH = ("val_crop_ratio", "val_interpolation", "mean", "std", "exif_rotation")
"""Keys of data in a network_config, beside `image_size`, the size of validation images, `val_flip` of model and
`precision` of trainer."""
_TYPES = {"name": str, "num_classes": int, "image_size": int, "classes": list | tuple, "options": dict | None}
_LARGEST_IMAGE = 4096
_MOST_LAYERS = 256


def open_network(ckpt: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The network of a checkpoint and its network_config, with an image size. Raises CheckpointError."""
    saved = foreign_checkpoint.read(ckpt, "ckpt")
    saved = checkpoints.checked(saved if "network" in saved else foreign_checkpoint.adopted(saved, ckpt), ckpt, "ckpt")
    config: dict[str, Any] = dict(saved.get("network_config", {}))
    if absent := [key for key in ("name", "num_classes") if key not in config]:
        raise CheckpointError(
            f"{ckpt} does not say how its network is built (no network_config: {', '.join(absent)}); "
            "expected a checkpoint that train.py wrote (ckpt)"
        )
    wrong = [key for key, kind in _TYPES.items() if key in config and not isinstance(config[key], kind)]
    wrong += [] if wrong else [key for key, value in (config.get("options") or {}).items() if not _is_small(key, value)]
    if wrong or not 0 < config.get("image_size", 1) <= _LARGEST_IMAGE:
        raise CheckpointError(f"{ckpt} holds an unusable network_config: {', '.join(wrong or ['image_size'])} (ckpt)")
    build = partial(build_network, **{key: config[key] for key in RECIPE if key in config})
    checkpoints.check_network(saved, _outline(build, ckpt), ckpt)
    network = build().eval()
    network.load_state_dict(saved["network"])
    facts: Any = network.pretrained_cfg
    config.setdefault("image_size", facts["input_size"][-1])
    return network, config


def _is_small(name: object, value: object) -> bool:
    """Whether an option of timm's network is a plain value, and no number of layers or channels that takes all time or
    memory."""
    most = _MOST_LAYERS if any(word in str(name) for word in ("depth", "layers", "blocks", "num_")) else _LARGEST_IMAGE
    return isinstance(value, bool | str | None) or (isinstance(value, int | float) and abs(value) <= most)


def _outline(build: Callable[[], nn.Module], ckpt: Path) -> nn.Module:
    """The network without memory for its weights: a file may ask for any number of classes."""
    try:
        with torch.device("meta"):
            return build()
    except ModelError:
        raise
    except Exception as error:  # of timm or torch, for the settings in the file
        raise CheckpointError(f"the network of {ckpt} (ckpt) cannot be built: {first_line(error)}") from error


def on_device(network: nn.Module, device: torch.device) -> nn.Module:
    """The network, moved to the device. On a GPU its weights are channels_last, as the images there are; otherwise each
    forward would convert the weights of each layer."""
    layout = torch.contiguous_format if device.type == "cpu" else torch.channels_last
    return network.to(device=device, memory_format=layout)  # type: ignore[call-overload, no-any-return]
