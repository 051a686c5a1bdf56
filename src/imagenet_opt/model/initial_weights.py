"""Weights to start training from: timm's, or the weights in a file."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from imagenet_opt.errors import CheckpointError, CheckpointMismatch, CheckpointNotFound, ConfigError
from imagenet_opt.model.network import pretrained_network
from imagenet_opt.run.checkpoint import files as checkpoints

_EXPECTED = "a run folder, or a .ckpt, .safetensors or .pth file"
_WRAPPERS = ("network", "state_dict", "model")
"""Keys under which a file holds weights: of this project, of Lightning and timm, of torchvision."""
_TRAINED_WITH = ("data.mean", "data.std", "model.blurpool", "model.small_stem")


def load_initial_weights(
    net: nn.Module,
    name: str,
    *,
    pretrained: bool = False,
    init_from: str | None = None,
    network_config: Mapping[str, Any] = MappingProxyType({}),
) -> str | None:
    """Load weights into `net`, and return a sentence about them; None if no weights are configured.

    pretrained: timm's weights of the network `name`. init_from: a checkpoint of train.py, a .safetensors file or a file
    of torch.save with a state dict. A head for another number of classes is not loaded. network_config: of the run.
    Raises ConfigError, CheckpointError, ModelError; CheckpointMismatch for weights of another architecture, or for
    weights that were trained with other settings of the images or the network than in `network_config`.
    """
    if pretrained and init_from is not None:
        raise ConfigError(
            "model.pretrained=true and model.init_from both choose the first weights; add model.pretrained=false to "
            "start from the file, or model.init_from=null"
        )
    if pretrained:
        options = network_config.get("options", {})
        weights, source = pretrained_network(name, options).state_dict(), f"timm's weights of {name} (model.pretrained)"
    elif init_from is not None:
        weights = _read_weights(Path(init_from).expanduser(), network_config)
        source = f"the weights of {init_from} (model.init_from)"
    else:
        return None
    return f"starting from {source}{_load(net, weights, source)}"


def _read_weights(path: Path, network_config: Mapping[str, Any]) -> dict[str, Tensor]:
    if path.is_dir():
        path = path / checkpoints.BEST if (path / checkpoints.BEST).exists() else path / checkpoints.LAST
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not path.is_file():
            raise CheckpointNotFound(f"no file {path} (model.init_from); expected {_EXPECTED}")
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be opened as safetensors (model.init_from): {error}") from error
    content = checkpoints.load(path, "model.init_from", expected=_EXPECTED)
    checkpoints.check_settings(content, network_config, _TRAINED_WITH, f"the weights of {path} (model.init_from)")
    wrapped = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), content)
    if not wrapped or not all(checkpoints.is_weight(*item) for item in wrapped.items()):
        raise CheckpointError(f"{path} holds no weights by name (model.init_from); expected a state dict")
    return {name.removeprefix("module."): tensor for name, tensor in wrapped.items()}


def _load(net: nn.Module, weights: dict[str, Tensor], source: str) -> str:
    """Load the weights into `net`, and return the end of a sentence about the head."""
    shapes = {name: tensor.shape for name, tensor in net.state_dict().items()}
    heads = net.pretrained_cfg["classifier"]  # type: ignore[index]
    heads = heads if isinstance(heads, tuple) else (heads,)  # distilled networks have two
    head = {f"{name}.{part}" for name in heads for part in ("weight", "bias")}
    other_head = [name for name in head & weights.keys() & shapes.keys() if weights[name].shape != shapes[name]]
    sentence = ""
    if other_head:
        num_saved, num_classes = len(weights[other_head[0]]), shapes[other_head[0]][0]
        sentence = f"; the head for {num_saved} classes is replaced by a new one for {num_classes}"
        weights = {name: tensor for name, tensor in weights.items() if name not in head}
        shapes = {name: shape for name, shape in shapes.items() if name not in head}
    wrong = sorted(
        name
        for name in weights.keys() | shapes.keys()
        if name not in weights or weights[name].shape != shapes.get(name)
    )
    if wrong:
        more = f" and {len(wrong) - 3} others" if len(wrong) > 3 else ""
        raise CheckpointMismatch(
            f"{source} are of another network: {', '.join(wrong[:3])}{more} do not fit; set model.name and the "
            "other keys of model to the values of the network that was trained"
        )
    net.load_state_dict(weights, strict=False)
    return sentence
