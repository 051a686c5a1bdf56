"""Creates optimizers by timm's names, with timm's rule for weight decay, and `fused` if torch supports it."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from timm.optim import (
    create_optimizer_v2,
    get_optimizer_class,
    get_optimizer_info,
    list_optimizers,
)
from torch import nn
from torch.optim import Optimizer

from imagenet_opt.errors import CheckpointMismatch, ConfigError

REFERENCE_BATCH = 256
"""Images per step for which learning rates are stated (linear scaling rule, arXiv 1706.02677)."""


def build_optimizer(
    network: torch.nn.Module,
    name: str,
    *,
    lr: float,
    weight_decay: float,
    global_batch: int,
    device: torch.device,
    fused: bool | None = None,
    no_decay: Literal["ndim", "name_bn", "norm", "none"] = "ndim",
    **options: Any,
) -> Optimizer:
    """Optimizer over the network's two parameter groups: decayed first, then not decayed.

    name: one of timm.optim.list_optimizers(); options that are not given have timm's defaults.
    lr: per 256 images; multiplied by global_batch / 256. fused: None means on a GPU, where the optimizer has it.
    no_decay: parameters without weight decay, see NO_DECAY. options: the optimizer's own, such as momentum or betas.

    Raises ConfigError for an unknown name or option, and for fused=True where there is no fused form.
    """
    known = _options_of(name)
    if unknown := sorted(set(options) - known):
        key = f"optimizer.{unknown[0]}"
        raise ConfigError(f"optimizer {name} has no option {', '.join(unknown)} ({key}); remove it with ~{key}")
    if fused and "fused" not in known:
        raise ConfigError(f"optimizer {name} has no fused form; set optimizer.fused=null")
    if "fused" in known:
        options["fused"] = device.type == "cuda" if fused is None else fused
    try:
        groups = _parameter_groups(network, weight_decay, no_decay)
        return create_optimizer_v2(groups, name, lr=lr * global_batch / REFERENCE_BATCH, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer.*: {error}") from error


def check_saved_groups(saved: list[dict[str, Any]], optimizer: Optimizer) -> None:
    """Raise CheckpointMismatch if the group sizes differ. saved: `param_groups` of an optimizer's state_dict."""
    sizes, expected = ([len(group["params"]) for group in groups] for groups in (saved, optimizer.param_groups))
    if sizes != expected:
        raise CheckpointMismatch(
            f"the checkpoint's optimizer has parameter groups of {sizes} tensors, expected {expected}; train with the "
            "versions of timm and imagenet-opt that wrote it, or start a new run with resume_from=null and another "
            "hydra.run.dir"
        )


def _options_of(name: str) -> set[str]:
    """Argument names of an optimizer. Raises ConfigError for an optimizer that is unknown or cannot be used here."""
    names = [str(optimizer) for optimizer in list_optimizers()]
    if name not in names:
        similar = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
        hint = f"near: {', '.join(similar)}" if similar else "see timm.optim.list_optimizers()"
        raise ConfigError(f"timm has no optimizer {name!r} (optimizer.name); {hint}")
    if get_optimizer_info(name).second_order:
        raise ConfigError(f"optimizer.name={name} needs second derivatives, which training does not compute")
    try:
        return set(inspect.signature(get_optimizer_class(name, bind_defaults=False)).parameters)
    except (ImportError, AssertionError) as error:
        raise ConfigError(f"optimizer.name={name} cannot be used on this machine: {error}; choose another") from error


def _parameter_groups(network: torch.nn.Module, weight_decay: float, no_decay: str) -> list[dict[str, Any]]:
    """The decayed parameters, then the others; a group without parameters is left out.

    The groups do not depend on the value of `weight_decay`, so a resumed run may change it.
    """
    names = NO_DECAY[no_decay](network)
    parameters = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for name, p in parameters if name not in names], "weight_decay": weight_decay},
        {"params": [p for name, p in parameters if name in names], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _vectors(network: torch.nn.Module) -> set[str]:
    excluded: set[str] = getattr(network, "no_weight_decay", set)()
    return {name for name, p in network.named_parameters() if p.ndim <= 1 or name.endswith(".bias")} | excluded


def _named_bn(network: torch.nn.Module) -> set[str]:
    return {name for name, _ in network.named_parameters() if "bn" in name}


def _of_norms(network: torch.nn.Module) -> set[str]:
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm, nn.LayerNorm)
    layers = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, norms)]
    return {f"{name}.{own}" for name, layer in layers for own, _ in layer.named_parameters(recurse=False)}


NO_DECAY: dict[str, Callable[[torch.nn.Module], set[str]]] = {
    "ndim": _vectors,
    "name_bn": _named_bn,
    "norm": _of_norms,
    "none": lambda network: set(),
}
"""Rules for parameters without weight decay. "ndim": biases, norms, all others of one dimension, and those that the
network names (timm). "name_bn": whose name contains bn, so the norms of ResNet's shortcuts and the head's bias decay
(FFCV, NVIDIA's DeepLearningExamples). "norm": those of norm layers (torchvision). "none": all decay."""
