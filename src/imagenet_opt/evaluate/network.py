"""The network to evaluate: of a checkpoint, or timm's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import nn

from imagenet_opt.data.transforms.normalize import MEAN, STD
from imagenet_opt.model.network import pretrained_network
from imagenet_opt.model.saved_network import open_network


@dataclass(frozen=True)
class Network:
    """net: in evaluation mode. num_classes: of its logits. mean, std: of RGB in [0, 1], with which it expects its
    images normalised. classes: names of its classes in the order of the logits; None if they are not known."""

    net: nn.Module
    num_classes: int
    image_size: int
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    crop_ratio: float | None = None
    classes: tuple[str, ...] | None = None


def saved(ckpt: Path) -> Network:
    """The network of a checkpoint of train.py; averaged weights if the run kept them. Raises CheckpointError."""
    net, config, _ = open_network(ckpt)
    classes = tuple(config["classes"]) if "classes" in config else None
    return Network(net, config["num_classes"], config["image_size"], classes=classes)


def pretrained(name: str) -> Network:
    """timm's network with timm's weights. Raises UnknownModel, ModelError."""
    net = pretrained_network(name).eval()
    facts: dict[str, Any] = net.pretrained_cfg  # type: ignore[assignment]
    subset = infer_imagenet_subset(facts)
    return Network(
        net,
        facts["num_classes"],
        facts["input_size"][-1],
        facts["mean"],
        facts["std"],
        facts.get("crop_pct"),
        tuple(ImageNetInfo(subset).label_names()) if subset else None,
    )
