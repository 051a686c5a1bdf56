"""The network to evaluate, the part of an image that it sees, and its logit of each class folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import nn

from imagenet_opt.data.options import Filter, LoaderOptions
from imagenet_opt.errors import CheckpointMismatch, ConfigError, did_you_mean
from imagenet_opt.model.network import RECIPE, Options, pretrained_network
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
_REMEDY = "choose the network's training data set (data.root, data.val_folder), or another ckpt="


@dataclass(frozen=True)
class Network:
    """net: in evaluation mode. num_classes: number of logits. classes: names of the classes in the order of the logits;
    None if unknown. overrides: of train.py, which validate as the network's own run did. recipe: keys of the group
    model with which it is built, if known."""

    net: nn.Module
    num_classes: int
    classes: tuple[str, ...] | None = None
    overrides: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)


def saved(ckpt: Path) -> Network:
    """The network of a checkpoint of train.py, with averaged weights if the run averaged. Raises CheckpointError."""
    net, config = open_network(ckpt)
    classes = tuple(config["classes"]) if "classes" in config else None
    known = {"val_image_size": config["image_size"]} | {key: config[key] for key in VALIDATED_WITH if config.get(key)}
    known = {key: list(value) if isinstance(value, tuple) else value for key, value in known.items()}
    flip = f"model.val_flip={str(config.get('val_flip', False)).lower()}"
    precision = str(config.get("precision"))
    word = f"trainer.precision={precision if precision in DTYPES else FLOAT32}"
    overrides = (*(f"data.{key}={value}" for key, value in known.items()), flip, word)
    recipe = {key: config[key] for key in RECIPE if key in config}
    return Network(net, config["num_classes"], classes, overrides, recipe)


def pretrained(name: str, options: Options) -> Network:
    """timm's network with timm's weights. Raises UnknownModel, ModelError."""
    net = pretrained_network(name, options).eval()
    facts: dict[str, Any] = net.pretrained_cfg  # type: ignore[assignment]
    subset = infer_imagenet_subset(facts)
    classes = tuple(ImageNetInfo(subset).label_names()) if subset else None
    size = (options or {}).get("img_size") or facts["input_size"][-1]
    overrides = (f"data.val_image_size={size}", f"trainer.precision={FLOAT32}")
    return Network(net, facts["num_classes"], classes, overrides)


@dataclass(frozen=True)
class View:
    """image_size: pixels of a side. crop_ratio: side of the centred crop, as a share of the shorter side.
    interpolation: filter of the resize. tta: classify the mirror image too (test-time augmentation)."""

    image_size: int
    crop_ratio: float
    interpolation: Filter = "bilinear"
    tta: bool = False


CONVENTIONS = {
    "torchvision": View(224, 224 / 256),
    "torchvision_v2": View(224, 224 / 232),
    "timm": View(224, 0.95, "bicubic"),
    "ffcv": View(256, 0.875, "area", tta=True),
    "mosaic": View(224, 224 / 232),
    "nvidia": View(224, 224 / 256),
    "fixres": View(384, 224 / 256),
}
"""Project -> its view."""


def view_of(loading: LoaderOptions, convention: str | None, *, tta: bool, val_flip: bool = False) -> View:
    """The view of a project in CONVENTIONS; None: the configured view, with the mirror image if `val_flip`.

    Raises ConfigError for an unknown project.
    """
    if convention is None:
        size = loading.val_image_size or loading.image_size
        return View(size, loading.val_crop_ratio, loading.val_interpolation or loading.interpolation, tta or val_flip)
    if convention not in CONVENTIONS:
        hint = did_you_mean(convention, CONVENTIONS, f"expected {', '.join(CONVENTIONS)}")
        raise ConfigError(f"eval={convention} is not known; {hint}")
    view = CONVENTIONS[convention]
    return replace(view, tta=view.tta or tta)


def logits_of(folders: Sequence[str], names: Sequence[str] | None, num_logits: int) -> list[int]:
    """The number of the logit of each class folder; there may be fewer folders than logits.

    names: of the network's classes, in the order of its logits; None if unknown. If some folder is not in `names` and
    all are whole numbers, they are class numbers, as in ImageNet-V2: of ImageNet's 1000 classes if `names` has the
    WordNet ids of all, else of the network's classes. Raises CheckpointMismatch for other folders.
    """
    known = {name: number for number, name in enumerate(names or ())}
    if known.keys() >= set(folders):
        return [known[folder] for folder in folders]
    if all(folder.isdecimal() for folder in folders):
        imagenet, largest = ImageNetInfo().label_names(), max(map(int, folders))
        logits = [known[name] for name in imagenet] if known.keys() >= set(imagenet) else list(range(num_logits))
        if largest < len(logits):
            return [logits[int(folder)] for folder in folders]
        raise CheckpointMismatch(
            f"the folder {largest} of the validation images is a class number, and the network has {len(logits)} "
            f"classes, from 0 to {len(logits) - 1}; {_REMEDY}"
        )
    if names is not None:
        foreign = [folder for folder in folders if folder not in known]
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise CheckpointMismatch(
            f"the network does not know {len(foreign)} of {len(folders)} classes of the validation images: "
            f"{', '.join(foreign[:3])}{more}; {_REMEDY}"
        )
    if len(folders) != num_logits:
        raise CheckpointMismatch(
            f"the network has {num_logits} classes, the validation images have {len(folders)}, and the names of the "
            f"network's classes are not known; {_REMEDY}"
        )
    return list(range(num_logits))
