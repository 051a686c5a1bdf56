"""Creates optimizers by timm's names, with parameter groups for weight decay and learning rate, and `fused` if torch
supports it."""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from timm import optim
from timm.optim.muon import Muon
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from imagenet_opt.errors import CheckpointMismatch, ConfigError, did_you_mean, first_line
from imagenet_opt.model.muon import BatchedMuon
from imagenet_opt.model.network import NORMS

REFERENCE_BATCH = 256
"""Images per step for which learning rates are stated (linear scaling rule, arXiv 1706.02677)."""
_NO_OPTIONS = {"params", "initial_lr", "step"}
"""Keys of a saved parameter group that are no options of the optimizer: from torch, the schedule, and timm's Lamb."""


def build_optimizer(
    network: torch.nn.Module,
    name: str,
    *,
    lr: float,
    weight_decay: Annotated[float, Field(ge=0)],
    global_batch: int,
    device: torch.device,
    fused: bool | None = None,
    no_decay: Literal["ndim", "name_bn", "norm", "none"] = "ndim",
    layer_decay: float | None = None,
    **options: Any,
) -> Optimizer:
    """Optimizer with two parameter groups: decayed parameters first, then the others.

    name: one of timm.optim.list_optimizers(); options that are not given have timm's defaults.
    lr: per 256 images; multiplied by global_batch / 256. fused: None means on a GPU, where the optimizer has it.
    no_decay: parameters without weight decay, see NO_DECAY. layer_decay: above 0 and at most 1; the learning rate of
    each layer is this factor times the rate of the next layer, and each layer has its own parameter groups, the head's
    first. Layers are timm's: the head, each block, the stem (BEiT, arXiv 2106.08254). None: one rate.
    options: the optimizer's own, such as momentum or betas.

    Raises ConfigError for an unknown name or option, and for fused=True where there is no fused form.
    """
    if layer_decay is not None and not 0 < layer_decay <= 1:
        raise ConfigError(f"optimizer.layer_decay={layer_decay} must be above 0 and at most 1, or null for one rate")
    known = options_of(name, options)
    if fused and "fused" not in known:
        raise ConfigError(f"optimizer {name} has no fused form; set optimizer.fused=null")
    if "fused" in known:
        options["fused"] = device.type == "cuda" if fused is None else fused
    try:
        rate = lr * global_batch / REFERENCE_BATCH
        groups = _parameter_groups(network, weight_decay, NO_DECAY[no_decay](network), rate, layer_decay)
        optimizer = optim.create_optimizer_v2(groups, name, lr=rate, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer.*: {first_line(error)}") from error
    if isinstance(optimizer, SGD) and options.get("fused"):
        _begin_momentum(optimizer)
    defaults = optimizer.defaults
    if isinstance(optimizer, Muon) and (defaults["algo"], defaults["conv_mode"]) == ("muon", "flatten"):
        optimizer.__class__ = BatchedMuon
    return optimizer


def _begin_momentum(optimizer: SGD) -> None:
    """Begin with a momentum of zero, which gives the same first step, except with dampening. In torch 2.11 to 2.14 the
    fused form leaves it uninitialised if loss scaling skips the first step, as float16 often does."""
    for group in optimizer.param_groups:
        if group["momentum"] and not group["dampening"]:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def options_of_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The options of each parameter group, as configured if no state was loaded."""
    return [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]


def restore_options(optimizer: Optimizer, scheduler: LambdaLR, options: list[dict[str, Any]]) -> None:
    """Give each parameter group its options again, which a state has overwritten; the learning rates are those of the
    schedule at its present step."""
    for i, (group, own) in enumerate(zip(optimizer.param_groups, options, strict=True)):
        factor = scheduler.lr_lambdas[i](scheduler.last_epoch)
        group |= own | {"initial_lr": own["lr"], "lr": own["lr"] * factor}
        scheduler.base_lrs[i] = own["lr"]


def check_saved_groups(saved: list[dict[str, Any]], optimizer: Optimizer) -> None:
    """Raise CheckpointMismatch for another optimizer or other group sizes. saved: `param_groups` of a state_dict."""
    saved_options, options = set(saved[0]) - _NO_OPTIONS, set(optimizer.param_groups[0]) - _NO_OPTIONS
    if not (saved_options <= options or options <= saved_options):  # an upgrade of torch may add options
        raise CheckpointMismatch(
            "the checkpoint is of a run with another optimizer, which has the options "
            f"{', '.join(sorted(saved_options - options))}; choose that optimizer (optimizer=...), or start a new run "
            "with resume_from=null and another hydra.run.dir"
        )
    sizes, expected = ([len(group["params"]) for group in groups] for groups in (saved, optimizer.param_groups))
    if sizes != expected:
        raise CheckpointMismatch(
            f"the checkpoint's optimizer has {len(sizes)} parameter groups, the first of {sizes[:2]} tensors, expected "
            f"{len(expected)}, the first of {expected[:2]}; set optimizer.layer_decay, optimizer.no_decay and "
            "model.freeze as they were, train with the versions of timm and imagenet-opt that wrote it, or start a new "
            "run with resume_from=null and another hydra.run.dir"
        )


def options_of(name: str, options: Iterable[str]) -> set[str]:
    """Argument names of an optimizer. options: keys of the group optimizer. Raises ConfigError for an optimizer that is
    unknown or cannot be used here, and for an unknown option."""
    names = [str(optimizer) for optimizer in optim.list_optimizers()]
    if name not in names:
        hint = did_you_mean(name, names, "see timm.optim.list_optimizers()")
        raise ConfigError(f"timm has no optimizer {name!r} (optimizer.name); {hint}")
    if optim.get_optimizer_info(name).second_order:
        raise ConfigError(f"optimizer.name={name} needs second derivatives, which training does not compute")
    try:
        known = set(inspect.signature(optim.get_optimizer_class(name, bind_defaults=False)).parameters)
    except (ImportError, AssertionError) as error:
        raise ConfigError(
            f"optimizer.name={name} cannot be used on this machine: {first_line(error)}; choose another"
        ) from error
    if unknown := sorted(set(options) - known - inspect.signature(build_optimizer).parameters.keys()):
        removed = " ".join(f"~optimizer.{option}" for option in unknown)
        hint = did_you_mean(unknown[0], known - {"params"}, f"leave it out, or add {removed}")
        raise ConfigError(f"optimizer {name} has no option {', '.join(unknown)} (optimizer.{unknown[0]}); {hint}")
    return known


def _parameter_groups(
    network: torch.nn.Module, weight_decay: float, undecayed: set[str], rate: float, layer_decay: float | None
) -> list[dict[str, Any]]:
    """Decayed, then undecayed parameters; with layer_decay timm's groups by layer, the head's first. Groups do not
    depend on the value of `weight_decay`, so a resumed run may change the value."""
    if layer_decay is None:
        parameters = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
        decayed = [parameter for name, parameter in parameters if name not in undecayed]
        others = [parameter for name, parameter in parameters if name in undecayed]
        both = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        return [group for group in both if group["params"]]
    groups: list[dict[str, Any]] = optim.param_groups_layer_decay(
        network,
        weight_decay,
        no_weight_decay_list=undecayed,
        weight_decay_exclude_1d=False,  # `undecayed` contains them where the rule says so
        layer_decay=layer_decay,
    )
    for group in groups:
        group["lr"] = rate * group.pop("lr_scale")
    return groups[::-1]


def _vectors(network: torch.nn.Module) -> set[str]:
    excluded: set[str] = getattr(network, "no_weight_decay", set)()
    return {name for name, p in network.named_parameters() if p.ndim <= 1 or name.endswith(".bias")} | excluded


def _named_bn(network: torch.nn.Module) -> set[str]:
    return {name for name, _ in network.named_parameters() if "bn" in name}


def _of_norms(network: torch.nn.Module) -> set[str]:
    layers = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, NORMS)]
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
