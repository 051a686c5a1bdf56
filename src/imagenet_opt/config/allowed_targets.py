"""Checks each `_target_` of a configuration against one table, before Hydra builds its object.

A recipe is code and trusted like code (docs/trust.md). The check stops an accident, and a `_target_` that came out of
a checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.errors import ConfigError

PACKAGES = (
    "imagenet_opt.callbacks",
    "imagenet_opt.data.datamodule",
    "imagenet_opt.model.schedule",
    "imagenet_opt.run.loggers",
    "lightning.pytorch",
)
"""Packages that define what a `_target_` may name; allow_targets adds the user's own."""


def check_targets(config: DictConfig, path: str = "", *, allowed: Sequence[str]) -> None:
    """Raise ConfigError at the first forbidden `_target_` below `config`. path: key of `config`. allowed: the user's
    packages, modules or full names (allow_targets)."""
    for place, key, value in leaves(OmegaConf.to_container(config, resolve=True), path):
        if key == "_target_" and not (is_within(value, allowed) or _is_defined_in_packages(value, place)):
            raise ConfigError(
                f"{place}={value} is in none of the packages that a configuration may build from; if this code is "
                f"yours, set allow_targets=[{value}], here, in the recipe or in conf/train.yaml"
            )


def leaves(value: Any, path: str = "", key: str = "") -> Iterator[tuple[str, str, Any]]:
    """(path, last key, value) of every value in nested containers, without the containers themselves."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from leaves(child, f"{path}.{name}" if path else str(name), str(name))
    elif isinstance(value, list | tuple):
        for i, child in enumerate(value):
            yield from leaves(child, f"{path}[{i}]", key)
    else:
        yield path, key, value


def is_within(target: Any, names: Sequence[str]) -> bool:
    """Whether `target` is one of `names`, or inside one of them."""
    return isinstance(target, str) and any(target == name or target.startswith(f"{name}.") for name in names)


def find(target: str, place: str) -> Any:
    """The class or function that `target` names. Raises ConfigError if Python cannot find or import it."""
    try:
        return get_object(target)
    except Exception as error:  # importing runs a module, which may raise anything
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split()) or type(error).__name__
        raise ConfigError(f"{place}={target} cannot be found: {reason}") from error


def _is_defined_in_packages(target: Any, place: str) -> bool:
    """False also for a name that a module of PACKAGES only imports, such as callbacks.mixing.os.system."""
    return is_within(target, PACKAGES) and is_within(getattr(find(target, place), "__module__", None), PACKAGES)
