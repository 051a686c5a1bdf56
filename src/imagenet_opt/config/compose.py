"""Composes and checks a configuration, before Hydra writes or builds anything from it."""

import sys
import warnings
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from imagenet_opt.config.allowed_targets import check_targets
from imagenet_opt.config.hydra_errors import explain
from imagenet_opt.config.optional_callbacks import leave_out_idle, switched_on
from imagenet_opt.config.overrides import complete, config_folder, key_of
from imagenet_opt.config.secrets import check_overrides, check_secrets
from imagenet_opt.errors import ConfigError, ImagenetOptError


def composed(overrides: tuple[str, ...]) -> DictConfig:
    """The configuration of train.py with these overrides. Raises ImagenetOptError."""
    config = _composed(completed(list(overrides)))
    with open_dict(config):
        config.run_folder = "."  # Hydra sets the run folder in train.py only
    check_targets(config, allowed=config.allow_targets)
    return config


def completed(words: list[str]) -> list[str]:
    """The command line as Hydra reads it: with implied overrides, and with keys for optional callbacks. Raises
    ConfigError."""
    return switched_on(complete(words))


def _composed(words: list[str]) -> DictConfig:
    """`hydra.compose`, checked; its errors become ConfigError."""
    prepare_hydra(words)
    try:
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            config = compose("train", words)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from error
    _check(config, words)
    return config


def prepare_hydra(words: list[str]) -> None:
    """Everything that must be done before Hydra sees a command line. Raises ConfigError."""
    check_overrides(words)
    register_resolvers()
    # Ray's plugin has a schema of the same name as conf/hydra/launcher/ray.yaml.
    warnings.filterwarnings("ignore", r"\s*'hydra/launcher/ray' is validated against ConfigStore schema")


class CheckConfig(Callback):
    """Hydra callback that checks the configuration of a run or a sweep before Hydra writes it.

    A wrong configuration ends the process, since Hydra turns any other error of a callback into a warning.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        try:
            _check(config, list(config.hydra.overrides.task))
        except ImagenetOptError as error:
            sys.exit(error)  # type: ignore[arg-type]  # cli/mistakes.py reports it

    on_multirun_start = on_run_start


def _check(config: DictConfig, words: list[str]) -> None:
    with open_dict(config):
        for name in [name for name, node in (config.get("callbacks") or {}).items() if node is None]:
            config.callbacks.pop(name)  # as ~callbacks.NAME does
    check_secrets(OmegaConf.to_container(config))
    leave_out_idle(config, words)
    _check_batch(config, words)
    _check_image_size(config, words)


def register_resolvers() -> None:
    """Register the functions that values of conf/ call, such as `${by_epochs:[0,off],[20,on]}`."""
    for function in (_of_weights, _by_epochs, _share_of_epochs, _published):
        OmegaConf.register_new_resolver(function.__name__.removeprefix("_"), function, replace=True)


def _of_weights(key: str, default: Any, *, _root_: DictConfig) -> Any:
    """`key` of the configuration of timm's weights, such as mean or crop_pct. `default` if model.pretrained is not
    true, or if timm has no value for `key`."""
    if OmegaConf.select(_root_, "model.pretrained") is not True:
        return default
    from timm.models import get_pretrained_cfg_value

    try:
        value = get_pretrained_cfg_value(str(_root_.model.name), key)
    except RuntimeError:  # an unknown name or tag, which build_network refuses
        return default
    return default if value is None else list(value) if isinstance(value, tuple) else value


def _by_epochs(*pairs: list[Any], _root_: DictConfig) -> Any:
    """The value of the last pair [epochs, value] whose epochs trainer.max_epochs reaches. Pairs are sorted, the first
    has 0 epochs."""
    return [value for epochs, value in pairs if epochs <= max(0, _root_.trainer.max_epochs)][-1]


def _share_of_epochs(epochs: float, *, _root_: DictConfig) -> float:
    """`epochs` as a share of the run, at most half of it."""
    return float(round(epochs / max(2 * epochs, _root_.trainer.max_epochs or 0), 7))


def _published(column: int, *, _root_: DictConfig) -> float | None:
    """Top-1 (0) or top-5 (1) of recipe.published, whose keys are numbers of epochs, for trainer.max_epochs; null for a
    number of epochs that it does not have."""
    accuracies = _root_.recipe.published.get(_root_.trainer.max_epochs)
    return None if accuracies is None else accuracies[column]


def _check_batch(config: DictConfig, overrides: list[str]) -> None:
    """A typed data.batch_size replaces a recipe's data.global_batch_size. Raises ConfigError if both are typed."""
    words = [word for word in overrides if key_of(word) == "data.batch_size"]
    if not words or (size := OmegaConf.select(config, "data.global_batch_size")) is None:
        return
    if "data.global_batch_size" not in map(key_of, overrides):
        config.data.global_batch_size = None
    else:
        raise ConfigError(
            f"{words[-1]} has no effect beside data.global_batch_size={size}, the batch of all processes together; set "
            "data.global_batch_size=N alone, or add data.global_batch_size=null"
        )


def _check_image_size(config: DictConfig, overrides: list[str]) -> None:
    """Refuse data.image_size on the command line if a schedule of growing images, perhaps of a recipe, ends at another
    size."""
    words = [word for word in overrides if key_of(word) == "data.image_size"]
    end = OmegaConf.select(config, "callbacks.resolution_schedule.end")
    if words and end is not None and config.data.image_size != end:
        start = config.callbacks.resolution_schedule.start
        raise ConfigError(
            f"{words[-1]} has no effect on training beside callbacks.resolution_schedule, whose images grow from "
            f"{start} to {end} pixels; set callbacks.resolution_schedule.start and callbacks.resolution_schedule.end, "
            "or add ~callbacks.resolution_schedule"
        )
