"""Decides what a configuration may build: checks every `_target_` before anything is imported or instantiated for it.

That a name is inside an allowed package is not enough: `callbacks.mixing.os.system` is one, and
`imagenet_opt.sweep.job` starts programs. So a target must be a name of TARGETS, or a class of one of KINDS that is
defined where the list says.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.errors import ConfigError

TARGETS = (
    "imagenet_opt.data.datamodule.demo_data",
    "imagenet_opt.data.datamodule.folder_data",
    "imagenet_opt.model.schedule.cosine",
    "imagenet_opt.model.schedule.cosine_by_epoch",
    "imagenet_opt.model.schedule.linear",
    "imagenet_opt.model.schedule.multistep",
    "imagenet_opt.model.schedule.piecewise",
    "imagenet_opt.model.schedule.polynomial",
    "imagenet_opt.run.loggers.metrics_csv.MetricsCsv",
    "imagenet_opt.run.loggers.tensorboard.TensorBoard",
    "imagenet_opt.run.loggers.wandb_logger.build_wandb",
    "lightning.pytorch.Trainer",
    "lightning.pytorch.loggers.CSVLogger",
    "lightning.pytorch.strategies.DDPStrategy",
)
"""Lightning's other loggers are not among them: to a server that the configuration names, they would send a key."""
KINDS = {
    "callbacks": "lightning.pytorch.callbacks.Callback",
    "lightning.pytorch.callbacks": "lightning.pytorch.callbacks.Callback",
    "lightning.pytorch.profilers": "lightning.pytorch.profilers.Profiler",
}
"""Package -> base class of what may be built out of it."""


def check_targets(config: DictConfig, path: str = "", *, allowed: Sequence[str]) -> None:
    """Raise ConfigError at the first `_target_` below `config` that may not be built. path: key of `config`.

    Targets must be written out, since the value of an interpolation can change while the run is being built. allowed:
    packages, modules or full names that the user trusts in addition (allow_targets).
    """
    views = (OmegaConf.to_container(config, resolve=resolve) for resolve in (False, True))
    for place, key, value in chain.from_iterable(leaves(view, path) for view in views):
        interpolated = isinstance(value, str) and "${" in value
        if interpolated and (key == "_target_" or "_target_" in value):
            raise ConfigError(f"{place}={value}: a target must be written out, without ${{...}}")
        if key == "_target_" and not is_within(value, allowed):
            _check(value, place)


def leaves(value: Any, path: str = "", key: str = "") -> Iterator[tuple[str, str, Any]]:
    """(path, last key, value) of every value in nested containers that is not a container itself."""
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


def refused(place: str, target: Any, reason: str) -> ConfigError:
    """The error for a target, with the narrowest allow_targets that would permit it."""
    return ConfigError(
        f"{place}={target}: {reason}; if you trust this code, set allow_targets=[{target}], here or in conf/train.yaml"
    )


def find(target: str, place: str) -> Any:
    """The class or function that `target` names. Raises ConfigError if there is none."""
    try:
        return get_object(target)
    except Exception as error:  # importing runs a module, which may raise anything
        reason = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
        raise ConfigError(f"{place}={target} cannot be found: {reason}") from error


def _check(target: Any, place: str) -> None:
    if target in TARGETS:
        return
    package = next((name for name in KINDS if is_within(target, [name])), None)
    if package is None:
        raise refused(place, target, "it is not among the targets that the project allows")
    actual, base = find(target, place), get_object(KINDS[package])
    if not (isinstance(actual, type) and issubclass(actual, base) and is_within(actual.__module__, [package])):
        raise refused(place, target, f"only a {base.__name__} defined in {package} may be built")
