"""Checks every configuration as it is composed, before Hydra acts on it.

Before train.py receives a configuration, Hydra writes it into the run folder, builds callbacks and logging from it, and
sets environment variables. A recipe may come from a stranger, so these checks restrict what a recipe can set.
"""

import warnings
from pathlib import Path
from typing import Any

import hydra._internal.hydra as hydra_internal
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from imagenet_opt.config.allowed_targets import check_targets, is_within, leaves, refused
from imagenet_opt.config.hydra_errors import explain
from imagenet_opt.config.hydra_plugins import TARGETS as _PLUGINS
from imagenet_opt.config.hydra_plugins import check_plugins
from imagenet_opt.config.overrides import complete, config_folder, follow_job
from imagenet_opt.config.removed_keys import check_removed
from imagenet_opt.config.secrets import check_overrides, check_secrets, guard_environment
from imagenet_opt.errors import ConfigError

_ACTED_ON = ("callbacks", "launcher", "sweeper", "job_logging", "hydra_logging")
"""Keys of the group hydra from which Hydra builds objects."""
_TARGETS = (
    "imagenet_opt.sweep.job.SweepTable",
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    *_PLUGINS,
)
_LOGGING = ("logging.FileHandler", "logging.Formatter", "logging.NullHandler", "logging.StreamHandler")
_STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
_RUN_FOLDER = "${hydra.runtime.output_dir}/"
_NAME = "${hydra.job.name}"
"""The default of submitit's launchers for their key `name`. This interpolation always gives a text."""


def composed(overrides: tuple[str, ...]) -> DictConfig:
    """The configuration of train.py with these overrides. Raises ImagenetOptError."""
    check_all()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        config = _compose(complete(list(overrides)))
    with open_dict(config):
        config.run_folder = "."  # Hydra sets the run folder in train.py only
    check_targets(config, allowed=config.allow_targets)
    return config


def run_folder(overrides: tuple[str, ...]) -> Path:
    """The folder of a run of train.py with these overrides. Raises ImagenetOptError."""
    check_all()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        config = _compose(complete(follow_job(list(overrides))), return_hydra_config=True)
    return Path(config.hydra.run.dir)


def _compose(overrides: list[str], **options: bool) -> DictConfig:
    """`hydra.compose`; its errors become ConfigError."""
    try:
        return compose("train", overrides, **options)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from error


def check_all() -> None:
    """Make Hydra compose through CheckedLoader in this process, with the resolvers of this project."""
    hydra_internal.ConfigLoaderImpl = CheckedLoader  # type: ignore[attr-defined]  # Hydra has no public setting for it
    _set_resolvers()


def _set_resolvers() -> None:
    """Interpolations give no secrets, and build no containers from text, which could contain a target."""
    register_resolvers()
    guard_environment()
    for name in ("oc.create", "oc.decode"):
        OmegaConf.clear_resolver(name)


def register_resolvers() -> None:
    """Register `${of_weights:KEY,DEFAULT}` and `${by_epochs:[EPOCHS,VALUE],...}`."""
    OmegaConf.register_new_resolver("of_weights", _of_weights, replace=True)
    OmegaConf.register_new_resolver("by_epochs", _by_epochs, replace=True)


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


class CheckedLoader(ConfigLoaderImpl):
    """Composes as Hydra does, and checks the result: of a run, of each job of a sweep and of `compose`.

    Raises ConfigError.
    """

    def load_configuration(
        self, config_name: str | None, overrides: list[str], *args: Any, **options: Any
    ) -> DictConfig:
        _set_resolvers()  # for jobs on other machines, which do not call check_all
        check_overrides(overrides)
        with warnings.catch_warnings():  # Ray's plugin has a schema of the same name as conf/hydra/launcher/ray.yaml
            warnings.filterwarnings("ignore", r"\s*'hydra/launcher/ray' is validated against ConfigStore schema")
            config = super().load_configuration(config_name, overrides, *args, **options)
        plain: Any = OmegaConf.to_container(config)
        check_secrets(plain)
        allowed = _trusted(plain.get("allow_targets", []), overrides)
        _check_commands(plain["hydra"], overrides)
        for part in _ACTED_ON:
            _check_part(plain["hydra"][part], f"hydra.{part}", allowed)
        check_plugins(config, overrides)
        check_removed(config)
        _check_batch(config, overrides)
        _check_image_size(config, overrides)
        return config


def _check_batch(config: DictConfig, overrides: list[str]) -> None:
    """A typed data.batch_size replaces a recipe's data.global_batch_size. Raises ConfigError if both are typed."""
    words = [word for word in overrides if word.lstrip("+").startswith("data.batch_size=")]
    if not words or (size := OmegaConf.select(config, "data.global_batch_size")) is None:
        return
    if not any(word.lstrip("+").startswith("data.global_batch_size=") for word in overrides):
        config.data.global_batch_size = None
    else:
        raise ConfigError(
            f"{words[-1]} has no effect beside data.global_batch_size={size}, the batch of all processes together; set "
            "data.global_batch_size=N alone, or add data.global_batch_size=null"
        )


def _check_image_size(config: DictConfig, overrides: list[str]) -> None:
    """Refuse data.image_size on the command line if a schedule of growing images, perhaps of a recipe, ends at another
    size."""
    words = [word for word in overrides if word.lstrip("+").startswith("data.image_size=")]
    end = OmegaConf.select(config, "callbacks.resolution_schedule.end")
    if words and end is not None and config.data.image_size != end:
        start = config.callbacks.resolution_schedule.start
        raise ConfigError(
            f"{words[-1]} has no effect on training beside callbacks.resolution_schedule, whose images grow from "
            f"{start} to {end} pixels; set callbacks.resolution_schedule.start and callbacks.resolution_schedule.end, "
            "or add ~callbacks.resolution_schedule"
        )


def _trusted(names: Any, overrides: list[str]) -> list[str]:
    """The value of `allow_targets`, which only the user may set."""
    if not isinstance(names, list) or not all(isinstance(name, str) and "${" not in name for name in names):
        raise ConfigError(f"allow_targets={names} is not a list of packages; expected allow_targets=[my_package]")
    typed = any(override.lstrip("+").startswith("allow_targets=") for override in overrides)
    if names and not typed and names != OmegaConf.load(config_folder() / "train.yaml").allow_targets:
        raise ConfigError(
            f"a recipe sets allow_targets={names}; only you may set it, in conf/train.yaml or on the command line"
        )
    return names


def _check_commands(hydra: dict[str, Any], overrides: list[str]) -> None:
    """Check the settings that change a job's environment variables or its command line."""
    if hydra["job"]["env_set"] or hydra["job"]["env_copy"]:
        raise ConfigError(
            "hydra.job.env_set and env_copy are not used here, since their values are saved in the run folder; "
            "set environment variables in the shell"
        )
    if foreign := sorted({*hydra["overrides"]["task"], *hydra["overrides"]["hydra"]} - set(overrides)):
        raise ConfigError(f"a recipe sets hydra.overrides ({foreign[0]}); remove that from it")
    for name in map(str, (hydra["sweeper"] or {}).get("params") or {}):
        if name.lstrip("+~").startswith(("hydra", "allow_targets")):
            raise ConfigError(f"hydra.sweeper.params.{name} cannot be swept; set it on the command line")


def _check_part(part: Any, path: str, allowed: list[str]) -> None:
    logs = path.endswith("_logging")
    names = (*_TARGETS, *_LOGGING) if logs else _TARGETS
    for place, key, value in leaves(part, path):
        if key == "_target_" or (logs and key in ("()", "class")):
            if value not in names and not is_within(value, allowed):
                raise refused(place, value, "it is not among the targets that the project allows for Hydra")
        elif isinstance(value, str) and logs:
            _check_log_text(place, key, value)
        elif isinstance(value, str) and value.startswith("${") and value.endswith("}") and value != _NAME:
            # an interpolation could give a container that contains a target
            raise ConfigError(f"{place}={value} must be written out, without ${{...}}")


def _check_log_text(place: str, key: str, value: str) -> None:
    """Check a text of a logging configuration. Python imports the name after ext://; the brace style reads attributes
    of objects."""
    if key == "style" and value != "%":
        raise ConfigError(f"{place}={value} must be %")
    if "://" in value and value not in _STREAMS:
        raise ConfigError(f"{place}={value} must be one of {', '.join(_STREAMS)}")
    if ("${" in value or key == "filename") and (not value.startswith(_RUN_FOLDER) or ".." in value):
        raise ConfigError(f"{place}={value} must be written out, or a file below {_RUN_FOLDER}")
