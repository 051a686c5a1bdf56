"""Reads the files that the training scripts of timm, torchvision and Lightning write."""

from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import timm
from timm.data import resolve_data_config
from torch import Tensor

from imagenet_opt.errors import CheckpointError
from imagenet_opt.run.checkpoint import files as checkpoints

_WEIGHTS = ("network", "state_dict_ema", "model_ema", "state_dict", "model")
"""Keys under which a file holds weights: of this project, averages of timm and torchvision, of Lightning and timm, of
torchvision. The first that is there counts."""
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
"""Of DistributedDataParallel, torch.compile and modules that hold a network."""
_VIEW = ("img_size", "crop_pct", "interpolation", "mean", "std")
"""Arguments of timm's script that decide how it validates."""


def read(path: Path, key: str, *, expected: str = "a run folder or a .ckpt file") -> dict[str, Any]:
    """Open a checkpoint of any program, as checkpoints.load does; `args` of scripts may be an argparse.Namespace."""
    return checkpoints.load(path, key, expected=expected, allowed=(Namespace,))


def weights_of(content: Mapping[str, Any], own: Iterable[str], path: Path, key: str) -> tuple[dict[str, Tensor], str]:
    """Weights by the names of the network, and words about them: averaged weights are preferred.

    own: names in the network's state dict. path, key: of the file, for messages. Raises CheckpointError.
    """
    wrapper = next((name for name in _WEIGHTS if isinstance(content.get(name), Mapping)), None)
    weights = dict(content if wrapper is None else content[wrapper])
    weights.pop("n_averaged", None)  # of torch's AveragedModel
    if not weights or not all(checkpoints.is_weight(*item) for item in weights.items()):
        raise CheckpointError(f"{path} holds no weights by name ({key}); expected a state dict")
    own = list(own)
    while prefix := next((prefix for prefix in _PREFIXES if all(name.startswith(prefix) for name in weights)), None):
        if all(name.startswith(prefix) for name in own):
            break
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    return weights, f", its averaged weights ({wrapper})" if wrapper in ("state_dict_ema", "model_ema") else ""


def adopted(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A file of timm's or torchvision's script in the form of a checkpoint of this project. Raises CheckpointError if
    the file does not name its network."""
    args = vars(content["args"]) if isinstance(content.get("args"), Namespace) else {}
    name = args.get("model", content.get("arch"))
    if not isinstance(name, str) or not timm.is_model(name):
        raise CheckpointError(
            f"{path} holds no `network`, and no `args` that name a network of timm; expected a checkpoint of train.py, "
            "or of the training scripts of timm or torchvision (ckpt)"
        )
    facts: dict[str, Any] = timm.get_pretrained_cfg(name).to_dict()  # type: ignore[union-attr]
    weights, _ = weights_of(content, (), path, "ckpt")
    heads = facts["classifier"]
    head = weights.get(f"{heads if isinstance(heads, str) else heads[0]}.weight")
    config = {"name": name, "num_classes": 0 if head is None or not head.ndim else len(head)}
    view = {key: args[key] for key in _VIEW if args.get(key) is not None and _is_plain(args[key])}
    if "arch" in content:  # of timm
        seen = resolve_data_config(view, pretrained_cfg=facts)
        size, config["val_crop_ratio"] = seen["input_size"][-1], seen["crop_pct"]
        config |= {"mean": list(seen["mean"]), "std": list(seen["std"])}
        if seen["interpolation"] in ("bilinear", "bicubic"):
            config["val_interpolation"] = seen["interpolation"]
    else:
        size, resized = (args.get(key) for key in ("val_crop_size", "val_resize_size"))
        size, resized = (size, resized) if type(size) is type(resized) is int and 0 < size <= resized else (224, 256)
        config["val_crop_ratio"] = size / resized
    return {"network": weights, "network_config": config | {"image_size": size}}


def _is_plain(value: object) -> bool:
    parts = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(part, int | float | str) for part in parts)
