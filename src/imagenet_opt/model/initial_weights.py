"""Weights to start training from: timm's, or the weights in a file."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from imagenet_opt.errors import CheckpointError, CheckpointMismatch, CheckpointNotFound, ConfigError, printable
from imagenet_opt.model import foreign_checkpoint
from imagenet_opt.model.network import pretrained_network
from imagenet_opt.run.checkpoint import files as checkpoints
from imagenet_opt.run.checkpoint.names import best_of

_EXPECTED = "a run folder, or a .ckpt, .safetensors or .pth file"


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
    of torch.save, also of the training scripts of timm and torchvision, whose averaged weights are preferred. A head
    for another number of classes, or for classes of other names than in `network_config`, is not loaded.
    network_config: of the run. Raises ConfigError, CheckpointError, ModelError; CheckpointMismatch for weights of
    another architecture, or for weights that were trained with other settings of the images or the network.
    """
    if pretrained and init_from is not None:
        raise ConfigError(
            "model.pretrained=true and model.init_from both choose the first weights; add model.pretrained=false to "
            "start from the file, or model.init_from=null"
        )
    classes: Sequence[str] | None = None
    if pretrained:
        options = network_config.get("options", {})
        weights, source = pretrained_network(name, options).state_dict(), f"timm's weights of {name} (model.pretrained)"
    elif init_from is not None:
        path = _file(Path(init_from).expanduser())
        content, config = _read_safetensors(path) if path.suffix == ".safetensors" else _read(path)
        source = f"the weights of {init_from} (model.init_from)"
        checkpoints.check_settings({"network_config": config}, network_config, source)
        weights, averaged = foreign_checkpoint.weights_of(content, net.state_dict(), path, "model.init_from")
        source += averaged
        classes = config.get("classes")
    else:
        return None
    derived = _derived(net)
    kept = {name: tensor for name, tensor in weights.items() if name not in derived}
    return f"starting from {source}{_load(net, kept, source, classes, network_config.get('classes'))}"


def _file(path: Path) -> Path:
    path = best_of(path) if path.is_dir() else path
    if not path.is_file():
        raise CheckpointNotFound(f"no file {path} (model.init_from); expected {_EXPECTED}")
    return path


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Content and network_config of a file of torch.save."""
    content = foreign_checkpoint.read(path, "model.init_from", expected=_EXPECTED)
    config = content.get("network_config")
    config = config if isinstance(config, dict) else {}
    is_named = all(isinstance(name, str) for name in config.get("classes", [0]))
    return content, config if is_named else {**config, "classes": None}


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Content, and the metadata, which are the network_config of an exported file."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    config: dict[str, Any] = {}
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be opened as safetensors (model.init_from): {error}") from error
    for key, text in metadata.items():
        with suppress(ValueError, RecursionError):  # a text of another program
            config[key] = json.loads(text)
    return {"network": weights}, config


def _derived(net: nn.Module) -> set[str]:
    """Names of the buffers that the network keeps out of its checkpoints, such as the kernel of a blur."""
    return {name for name, _ in net.named_buffers(remove_duplicate=False)} - net.state_dict().keys()


def _load(
    net: nn.Module,
    weights: dict[str, Tensor],
    source: str,
    saved_classes: Sequence[str] | None,
    classes: Sequence[str] | None,
) -> str:
    """Load the weights into `net`, and return the end of a sentence about the head. saved_classes, classes: names of
    the classes of the file and of the run; None if unknown."""
    shapes = {name: tensor.shape for name, tensor in net.state_dict().items()}
    heads = net.pretrained_cfg["classifier"]  # type: ignore[index]
    heads = heads if isinstance(heads, tuple) else (heads,)  # distilled networks have two
    head = {f"{name}.{part}" for name in heads for part in ("weight", "bias")}
    own = [name for name in sorted(head & weights.keys() & shapes.keys()) if weights[name].ndim]
    sentence = ""
    if own:
        num_saved, num_classes = len(weights[own[0]]), shapes[own[0]][0]
        if any(weights[name].shape != shapes[name] for name in own):
            sentence = f"; the head for {num_saved} classes is replaced by a new one for {num_classes}"
        elif saved_classes and classes and list(saved_classes) != list(classes):
            sentence = (
                f"; the head for the classes {_few(saved_classes)} is replaced by a new one for {_few(classes)}; "
                "to keep it, start from the file of imagenet-opt export"
            )
        else:
            kept = f"; the head for {num_saved} classes is kept"
            sentence = kept if saved_classes else f"{kept}, and the file does not name them"
    if "new one" in sentence:
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


def _few(classes: Sequence[str]) -> str:
    return ", ".join([*(printable(str(name)) for name in classes[:3]), *(["..."] if len(classes) > 3 else [])])
