"""Removed keys and recipes of the configuration, and what replaces them."""

import re

from omegaconf import DictConfig, OmegaConf

from imagenet_opt.errors import ConfigError

_NONFINITE = (
    "a run stops at a loss that is not finite; against such losses lower optimizer.lr, or set model.max_grad_norm=1"
)
_SHARES = "use callbacks.resolution_schedule.grow_from and grow_until, shares of the run from 0 to 1"
_SAMPLED = "one recorder samples the machine five times a second, and the GPU once a second"
REMOVED = {
    "callbacks.gpu_utilization.interval_seconds": _SAMPLED,
    "callbacks.host_utilization.interval_seconds": _SAMPLED,
    "callbacks.resolution_schedule.first_epoch": _SHARES,
    "callbacks.resolution_schedule.last_epoch": _SHARES,
    "data.color_jitter": "data.augment changes colours, see docs/pipeline.md",
    "data.random_erasing_mode": "an erased box gets the mean colour",
    "model.on_nonfinite": _NONFINITE,
    "model.max_skipped_steps": _NONFINITE,
}
"""Key -> what happens now, or what to use instead."""


def explain_removed(key: str) -> str | None:
    """A sentence that explains why a key is invalid now; None for a key that never existed."""
    return f"{key} was removed: {REMOVED[key]}" if key in REMOVED else None


def explain_removed_recipe(name: str) -> str | None:
    """A sentence that names the recipe that replaces a removed one; None for a recipe that never existed."""
    match = re.fullmatch(r"(rn18_ffcv|rn50_ffcv)(16|24|32|40|56|88)", name)
    return match and f"experiment={name} is now experiment={match[1]} trainer.max_epochs={match[2]}"


def check_removed(config: DictConfig) -> None:
    """Raise ConfigError if a recipe, or an override that adds keys, sets a removed key."""
    for key in REMOVED:
        group, _, name = key.rpartition(".")
        if name in (OmegaConf.select(config, group) or {}):
            raise ConfigError(explain_removed(key))
