"""Optimizers by name, with `fused` where torch has it."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from timm.optim.lamb import Lamb
from torch.optim import SGD, AdamW, Optimizer

from imagenet_opt.errors import ConfigError
from imagenet_opt.model.param_groups import param_groups

REFERENCE_BATCH = 256
"""Images per step for which learning rates are stated (linear scaling rule, arXiv 1706.02677)."""

_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": SGD, "adamw": AdamW, "lamb": Lamb}


def build_optimizer(
    network: torch.nn.Module,
    name: str,
    *,
    lr: float,
    weight_decay: float,
    fused: bool | None,
    global_batch: int,
    device: torch.device,
    **options: Any,
) -> Optimizer:
    """Optimizer over the network's two parameter groups.

    lr: per 256 images; multiplied by global_batch / 256. fused: None means on a GPU, where the optimizer has it.
    options: the optimizer's own, such as momentum or betas.

    Raises ConfigError for an unknown name or option, and for fused=True where there is no fused form.
    """
    if name not in _OPTIMIZERS:
        raise ConfigError(f"optimizer.name={name!r} is not known; choose one of {', '.join(_OPTIMIZERS)}")
    factory = _OPTIMIZERS[name]
    known = inspect.signature(factory).parameters
    if unknown := sorted(set(options) - set(known)):
        raise ConfigError(f"optimizer {name} has no option {', '.join(unknown)} (optimizer.{unknown[0]})")
    if fused and "fused" not in known:
        raise ConfigError(f"optimizer {name} has no fused form; set optimizer.fused=null")
    if "fused" in known:
        options["fused"] = device.type == "cuda" if fused is None else fused
    try:
        return factory(param_groups(network, weight_decay), lr=lr * global_batch / REFERENCE_BATCH, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer.*: {error}") from error
