"""Checks every `_target_` of a configuration before Python imports its module or Hydra builds its object.

An allowed package is no sufficient condition: `imagenet_opt.callbacks.mixing.os.system` lies in an allowed package, and
`imagenet_opt.sweep.job` starts programs. So a target must be a name in TARGETS, or a class that a package of KINDS
defines and that derives from this package's base class.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pkgutil import iter_modules
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.errors import ConfigError, did_you_mean

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
"""Lightning's other loggers are missing on purpose: they would send a key to a server that the configuration names."""
KINDS = {
    "imagenet_opt.callbacks": "lightning.pytorch.callbacks.Callback",
    "lightning.pytorch.callbacks": "lightning.pytorch.callbacks.Callback",
    "lightning.pytorch.profilers": "lightning.pytorch.profilers.Profiler",
}
"""Package -> base class of the classes that Hydra may build from this package."""


def check_targets(config: DictConfig, path: str = "", *, allowed: Sequence[str]) -> None:
    """Raise ConfigError at the first forbidden `_target_` below `config`. path: key of `config`. allowed: packages,
    modules or full names that the user trusts in addition (allow_targets).

    A target cannot be an interpolation, because the value of an interpolation can change while a run is built.
    """
    views = (OmegaConf.to_container(config, resolve=resolve) for resolve in (False, True))
    for place, key, value in chain.from_iterable(leaves(view, path) for view in views):
        interpolated = isinstance(value, str) and "${" in value
        if interpolated and (key == "_target_" or "_target_" in value):
            raise ConfigError(f"{place}={value}: a target must be written out, without ${{...}}")
        if key == "_target_" and not is_within(value, allowed):
            _check(value, place)


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


def refused(place: str, target: Any, reason: str) -> ConfigError:
    """The error for a target, with the narrowest allow_targets that permits the target."""
    return ConfigError(
        f"{place}={target}: {reason}; if you trust this code, set allow_targets=[{target}], here or in conf/train.yaml"
    )


def find(target: str, place: str) -> Any:
    """The class or function that `target` names. Raises ConfigError if Python cannot find or import it."""
    try:
        return get_object(target)
    except Exception as error:  # importing runs a module, which may raise anything
        cause = error.__cause__ or error
        reason = _missing(target, cause) or " ".join(str(cause).split()) or type(error).__name__
        raise ConfigError(f"{place}={target} cannot be found: {reason}") from error


def _missing(target: str, cause: BaseException) -> str | None:
    """The name that an imported module lacks, with the most similar of its public names; None for other causes."""
    missing = cause.name if isinstance(cause, ModuleNotFoundError) and cause.name else ""
    parent, _, name = missing.rpartition(".")
    if parent not in sys.modules or not is_within(target, [missing]):
        return None
    module = sys.modules[parent]
    public = [key for key, value in vars(module).items() if key[0] != "_" and callable(value)]
    public += [part.name for part in iter_modules(getattr(module, "__path__", ()))]
    return "; ".join(filter(None, (f"{parent} has no {name}", did_you_mean(name, public, ""))))


def _check(target: Any, place: str) -> None:
    if target in TARGETS:
        return
    package = next((name for name in KINDS if is_within(target, [name])), None)
    if package is None:
        raise refused(place, target, "the project does not allow this target")
    cls, base = find(target, place), get_object(KINDS[package])
    if not (isinstance(cls, type) and issubclass(cls, base) and is_within(cls.__module__, [package])):
        raise refused(place, target, f"only a {base.__name__} defined in {package} may be built")
