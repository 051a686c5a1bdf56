"""Weights to start training from: timm's, or those of a file."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from imagenet_opt.errors import CheckpointError, CheckpointMismatch, CheckpointNotFound, ConfigError
from imagenet_opt.model.network import pretrained_network
from imagenet_opt.run.checkpoint import files as checkpoints

_WRAPPERS = ("network", "state_dict", "model")
"""Keys of files that hold weights among other things: of this project, of Lightning and timm, of torchvision."""


def load_initial_weights(
    net: nn.Module,
    name: str,
    *,
    pretrained: bool = False,
    init_from: str | None = None,
    network_config: Mapping[str, Any] = MappingProxyType({}),
) -> str | None:
    """Load weights into `net`, and return a sentence about them; None if none are configured.

    pretrained: timm's weights of the network `name`. init_from: a checkpoint of train.py, a .safetensors file or a file
    of torch.save with a state dict. A head for another number of classes is not loaded. network_config: of the run.
    Raises ConfigError, CheckpointError, ModelError; CheckpointMismatch for weights of another architecture, or trained
    with another mean or std than the network_config has.
    """
    if pretrained and init_from is not None:
        raise ConfigError(
            "model.pretrained=true and model.init_from both choose the first weights; add model.pretrained=false to "
            "start from the file, or model.init_from=null"
        )
    if pretrained:
        weights, source = pretrained_network(name).state_dict(), f"timm's weights of {name} (model.pretrained)"
    elif init_from is not None:
        weights = _of_file(Path(init_from).expanduser(), network_config)
        source = f"the weights of {init_from} (model.init_from)"
    else:
        return None
    return f"starting from {source}{_load(net, weights, source)}"


def _of_file(path: Path, network_config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors by name."""
    if path.is_dir():
        path = path / checkpoints.BEST if (path / checkpoints.BEST).exists() else path / checkpoints.LAST
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not path.is_file():
            raise CheckpointNotFound(f"no file {path} (model.init_from)")
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be opened as safetensors (model.init_from): {error}") from error
    content: object = checkpoints.load(path, "model.init_from")
    if isinstance(content, Mapping):
        _check_normalization(path, content.get("network_config", {}), network_config)
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    weights = {name.removeprefix("module."): tensor for name, tensor in content.items()}  # type: ignore[attr-defined]
    if not weights or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise CheckpointError(f"{path} holds no weights by name (model.init_from); expected a state dict")
    return weights


def _check_normalization(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    for key in ("mean", "std"):
        if key in saved and key in own and list(saved[key]) != list(own[key]):
            raise CheckpointMismatch(
                f"the weights of {path} (model.init_from) were trained with data.{key}={saved[key]}, and this run has "
                f"data.{key}={own[key]}; set data.{key}={saved[key]}"
            )


def _load(net: nn.Module, weights: dict[str, Tensor], source: str) -> str:
    """Load the weights into `net`, and return the end of a sentence about the head."""
    own = net.state_dict()
    head = {f"{net.pretrained_cfg['classifier']}.{part}" for part in ("weight", "bias")}  # type: ignore[index]
    other_head = [name for name in head & weights.keys() & own.keys() if weights[name].shape != own[name].shape]
    if other_head:
        sizes = len(weights[other_head[0]]), len(own[other_head[0]])
        weights = {name: tensor for name, tensor in weights.items() if name not in head}
    required = own.keys() - (head if other_head else set())
    wrong = sorted(
        {name for name in required if name not in weights or weights[name].shape != own[name].shape}
        | (weights.keys() - own.keys())
    )
    if wrong:
        more = f" and {len(wrong) - 3} others" if len(wrong) > 3 else ""
        raise CheckpointMismatch(
            f"{source} are of another network: {', '.join(wrong[:3])}{more} do not fit; set model.name and the other "
            "keys of model as they were"
        )
    net.load_state_dict(weights, strict=False)
    return f"; the head for {sizes[0]} classes is replaced by a new one for {sizes[1]}" if other_head else ""
