"""Computes, before training, whether a training step fits into the GPU's memory."""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.optim import Optimizer

from imagenet_opt.config.build import device_of, largest_size
from imagenet_opt.machine import GIB
from imagenet_opt.model.micro_batch import part_sizes
from imagenet_opt.model.network import RECIPE, build_network, frozen_parts
from imagenet_opt.model.optimizer import build_optimizer
from imagenet_opt.probe.memory import SPARE, allowed_size, even_parts
from imagenet_opt.probe.step_memory import StepMemory, StepSetting, step_memory

log = logging.getLogger(__name__)


@rank_zero_only
def log_need(config: DictConfig) -> None:
    """Log one line about the memory need of this configuration, as a warning if a step does not fit; nothing without
    a GPU."""
    if (card := gpu_bytes(config)) is not None and (verdict := judge_need(config, config.model.num_classes, card)):
        fits, text = verdict
        log.log(logging.INFO if fits else logging.WARNING, text)


def judge_need(config: DictConfig, num_classes: int, card_bytes: int | None) -> tuple[bool, str] | None:
    """Whether a step of the configuration fits, with a sentence; None if the need is unknown. card_bytes: memory of the
    GPU; None for a sentence about the need alone, with True."""
    batch, micro = config.data.batch_size, config.model.micro_batch_size
    need = need_of(config, num_classes, batch, micro)
    if need is None:
        return None
    gib, card_gib = need.num_bytes / GIB, (card_bytes or 0) / GIB
    at_once = f", {need.num_images} at once," if need.num_images < batch else ""
    text = f"a training step of {batch} images of {largest_size(config)} px{at_once} needs about {gib:.3g} GiB"
    if card_bytes is None:
        return True, f"{text} of GPU memory for its tensors"
    if need.num_bytes <= usable(card_bytes):
        return True, f"{text} for its tensors, of the GPU's {card_gib:.3g} GiB"
    compiled = " (less if compiled)" if _acceleration(config).get("compile") else ""
    text += f" for its tensors{compiled}; the GPU has {card_gib:.3g} GiB, and {100 * SPARE:.0f} % should stay free"
    return False, f"{text}. {_remedy(batch, need.most_images(usable(card_bytes)))}"


def need_of(
    config: DictConfig, num_classes: int, batch_size: int, micro_batch_size: int | None = None
) -> StepMemory | None:
    """Memory of one process at the largest image size; None if it cannot be computed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _need(config, num_classes, batch_size, part_sizes(batch_size, micro_batch_size)[0])
    except Exception as error:  # any network or optimizer may raise
        log.debug(f"the memory of a step is unknown before it runs: {type(error).__name__}: {error}")
        return None


def gpu_bytes(config: DictConfig) -> int | None:
    """Total memory of the GPU as torch reports it; None on a CPU."""
    device = device_of(config)
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def usable(card_bytes: int) -> float:
    """The memory that `data.batch_size=auto` lets a step use."""
    return (1 - SPARE) * card_bytes


def _need(config: DictConfig, num_classes: int, batch_size: int, at_once: int) -> StepMemory:
    net, make_optimizer, setting = training_parts(config, num_classes, batch_size)
    return step_memory(net, make_optimizer, setting, batch_size=batch_size, micro_batch_size=at_once)


def training_parts(
    config: DictConfig, num_classes: int, batch_size: int
) -> tuple[nn.Module, Callable[[nn.Module], Optimizer], StepSetting]:
    """The configured network on the device `meta`, a function that creates its optimizer, and the setting of a step."""
    network: dict[str, Any] = {name: config.model[name] for name in RECIPE} | {"num_classes": num_classes}
    with torch.device("meta"):
        net = build_network(**network)
    frozen_parts(net, config.model.freeze)
    options: Any = OmegaConf.to_container(config.optimizer, resolve=True)
    options |= {"fused": False, "global_batch": batch_size, "device": torch.device("cpu")}  # the state is the same
    acceleration = _acceleration(config)
    weights, autocast = _dtypes(str(config.trainer.precision))
    setting = StepSetting(
        image_size=largest_size(config),
        weights=weights,
        autocast=autocast,
        channels_last=acceleration.get("channels_last", False),
        gradient_checkpointing=acceleration.get("gradient_checkpointing", False),
        label_smoothing=config.model.label_smoothing,
    )
    return net, partial(build_optimizer, **options), setting


def _acceleration(config: DictConfig) -> Any:
    return config.callbacks.get("acceleration") or {}


def _dtypes(precision: str) -> tuple[torch.dtype | None, torch.dtype | None]:
    """Dtypes of the weights and of autocast on a GPU, by Lightning's precision or `mixed`. Both 16-bit types take
    the same memory."""
    if precision.startswith("64"):
        return torch.float64, None
    if "16" not in precision and precision != "mixed":
        return None, None
    return (torch.bfloat16, None) if precision.endswith("true") else (None, torch.bfloat16)


def _remedy(batch_size: int, most: int) -> str:
    if most < 1:
        return (
            "Not even one image fits: lower data.image_size, choose a smaller model.name, or set "
            "callbacks.acceleration.gradient_checkpointing=true"
        )
    most = allowed_size(most)
    return (
        f"About {most} images fit at once: lower data.batch_size, or set "
        f"model.micro_batch_size={even_parts(batch_size, most)}, which changes neither batch nor schedule"
    )
