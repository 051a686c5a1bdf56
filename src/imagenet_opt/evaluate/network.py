"""The network to evaluate: of a checkpoint, or timm's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import nn

from imagenet_opt.model.network import pretrained_network
from imagenet_opt.model.saved_network import VALIDATED_WITH, open_network

FLOAT32 = "32-true"
DTYPES: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    **dict.fromkeys((FLOAT32, "32"), (torch.float32, None)),
    **dict.fromkeys(("64-true", "64"), (torch.float64, None)),
    "16-true": (torch.float16, None),
    "bf16-true": (torch.bfloat16, None),
    **dict.fromkeys(("16-mixed", "16"), (torch.float32, torch.float16)),
    **dict.fromkeys(("bf16-mixed", "bf16"), (torch.float32, torch.bfloat16)),
}
"""Lightning's precision -> dtypes of weights and images, and of autocast."""


@dataclass(frozen=True)
class Network:
    """net: in evaluation mode. num_classes: number of logits. classes: names of the classes in the order of the logits;
    None if unknown. overrides: of train.py, which validate as the network's own run did. name: timm's, if known."""

    net: nn.Module
    num_classes: int
    classes: tuple[str, ...] | None = None
    overrides: tuple[str, ...] = ()
    name: str | None = None


def saved(ckpt: Path) -> Network:
    """The network of a checkpoint of train.py, with averaged weights if the run averaged. Raises CheckpointError."""
    net, config, _ = open_network(ckpt)
    classes = tuple(config["classes"]) if "classes" in config else None
    known = {"val_image_size": config["image_size"]} | {key: config[key] for key in VALIDATED_WITH if config.get(key)}
    known = {key: list(value) if isinstance(value, tuple) else value for key, value in known.items()}
    flip = f"model.val_flip={str(config.get('val_flip', False)).lower()}"
    precision = str(config.get("precision"))
    word = f"trainer.precision={precision if precision in DTYPES else FLOAT32}"
    overrides = (*(f"data.{key}={value}" for key, value in known.items()), flip, word)
    return Network(net, config["num_classes"], classes, overrides, config["name"])


def pretrained(name: str) -> Network:
    """timm's network with timm's weights. Raises UnknownModel, ModelError."""
    net = pretrained_network(name).eval()
    facts: dict[str, Any] = net.pretrained_cfg  # type: ignore[assignment]
    subset = infer_imagenet_subset(facts)
    classes = tuple(ImageNetInfo(subset).label_names()) if subset else None
    overrides = (f"data.val_image_size={facts['input_size'][-1]}", f"trainer.precision={FLOAT32}")
    return Network(net, facts["num_classes"], classes, overrides)
