"""Composes and checks a configuration, before Hydra writes or builds anything from it, and records it in its folder."""

import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.config.hydra_errors import explain
from imagenet_opt.config.keys import check_keys, defaults, is_needed
from imagenet_opt.config.length import check_limits
from imagenet_opt.config.overrides import complete, config_folder, key_of, quoted, train_program, value_of
from imagenet_opt.config.trust import check_overrides, check_secrets, check_targets, entries
from imagenet_opt.errors import ConfigError, ImagenetOptError, RunFolderError

RECORD = ".hydra"
"""Folder of the configuration in a run folder."""
SWITCHES: dict[str, dict[str, float | None]] = {
    "resolution_schedule": {"start": 160},
    "ema": {"decay": 0.9998},
    "early_stop": {"stopping_threshold": 0.759, "patience": None},
    "profiler": {"start_step": 10},
}
"""Callback that is off until one of these keys has a value -> these keys, and a usual value of the first."""
_MIXING = "callbacks.mixing.mode"


def composed(overrides: tuple[str, ...], judge: Callable[[DictConfig], None] = lambda config: None) -> DictConfig:
    """The configuration of train.py with these overrides. judge: checks more, before torch is imported. Raises
    ImagenetOptError."""
    words = complete(list(overrides))
    prepare_hydra(words)
    try:
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            config = compose("train", words)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, words)) from error
    _check(config, words)
    judge(config)
    with open_dict(config):
        config.run_folder = "."  # Hydra sets the run folder in train.py only
    check_targets(config, allowed=config.allow_targets)
    from imagenet_opt.config.build import check_config  # imports torch

    check_config(config)
    return config


def prepare_hydra(words: list[str]) -> None:
    """Everything that must be done before Hydra sees a command line. Raises ConfigError."""
    check_overrides(words)
    for word in words:
        if word.startswith("~") and is_needed(key := key_of(word)):
            raise ConfigError(f"leave out ~{key}: a run needs it; set {key}=VALUE in its place")
        for name in SWITCHES.keys() & re.findall(r"\w+", value_of(word) if key_of(word) == "callbacks" else ""):
            if word.startswith("+"):
                raise ConfigError(f"leave out {word}: callbacks.{name} is there, and on if you set {_switch(name)}")
    register_resolvers()
    # Ray's plugin has a schema of the same name as conf/hydra/launcher/ray.yaml.
    warnings.filterwarnings("ignore", r"\s*'hydra/launcher/ray' is validated against ConfigStore schema")


class CheckConfig(Callback):
    """Hydra callback that checks the configuration of a run or a sweep before Hydra writes it.

    A wrong configuration ends the process, since Hydra turns any other error of a callback into a warning.
    """

    def on_run_start(self, config: DictConfig, kind: str = "run", **_: Any) -> None:
        try:
            _check(config, list(config.hydra.overrides.task))
            make_new_folder(config.hydra, kind)
        except ImagenetOptError as error:
            sys.exit(error)  # type: ignore[arg-type]  # cli/mistakes.py reports it

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        self.on_run_start(config, "sweep")


def make_new_folder(hydra: DictConfig, kind: str) -> None:
    """Create the folder of a run or sweep if the clock names it. Another start in the same second gets another name,
    and never resumes the first. Raises RunFolderError."""
    if "${now:" not in str(OmegaConf.to_container(hydra[kind])["dir"]):  # type: ignore[call-overload,index]
        return
    named = folder = Path(hydra[kind].dir)
    try:
        named.parent.mkdir(parents=True, exist_ok=True)
        for number in count(2):
            with suppress(FileExistsError):
                folder.mkdir()
                break
            folder = named.with_name(f"{named.name}_{number}")
    except OSError as error:
        raise RunFolderError(
            f"cannot write {folder} ({error.strerror}); choose another folder with hydra.{kind}.dir=FOLDER"
        ) from error
    with read_write(hydra):
        hydra[kind].dir = str(folder)
        hydra.overrides.hydra.append(f"hydra.{kind}.dir={quoted(folder)}")  # jobs of a sweep are composed from these


def _check(config: DictConfig, words: list[str]) -> None:
    with open_dict(config):
        for name in [name for name, node in (config.get("callbacks") or {}).items() if node is None]:
            config.callbacks.pop(name)  # as ~callbacks.NAME does
    raw: Any = OmegaConf.to_container(config)
    values = entries(raw)
    check_secrets(values)
    for key, value in check_keys(raw, values).items():
        OmegaConf.update(config, key, value)
    leave_out_idle(config, words)
    check_limits(config.trainer)
    if (recipe := config.get("recipe")) is not None and not OmegaConf.is_dict(recipe):
        raise ConfigError(
            f"recipe={recipe} chooses nothing: recipe holds facts about a recipe; add experiment={recipe}"
        )
    price = config.get("price_per_hour")
    if price is not None and (isinstance(price, bool) or not isinstance(price, int | float) or not 0 < price < 1e9):
        raise ConfigError(
            f"price_per_hour={price} is no price; expected dollars for an hour of a machine, such as 0.50"
        )
    _check_batch(config, words)
    _check_image_size(config, words)


def leave_out_idle(config: DictConfig, words: list[str]) -> None:
    """Remove the callbacks of SWITCHES that no key switches on. words: the overrides.

    Raises ConfigError if a key of such a callback was changed, or a word changes a key of mixing, which is off, unless
    a word switches the callback off.
    """
    typed = [key for key in map(key_of, words) if key.startswith("callbacks.mixing.") and key in defaults()]
    mode = (config.get("callbacks") or {}).get("mixing", {}).get("mode")
    if typed and mode in (False, "off") and _MIXING not in typed:  # a recipe may set them for other lengths of the run
        raise ConfigError(f"{typed[0]} has no effect, since callbacks.mixing is off; add {_MIXING}=on")
    for name, switches in SWITCHES.items():
        node = (config.get("callbacks") or {}).get(name)
        if node is None or any(node.get(key) is not None for key in switches):
            continue
        default: Any = OmegaConf.to_container(OmegaConf.load(config_folder() / "callbacks" / f"{name}.yaml"))
        values: Any = OmegaConf.to_container(node)
        changed = [key for key, value in values.items() if value != default[name].get(key)]
        named = [f"callbacks.{name}.{key}" for key in changed]
        named += [word for word in words if key_of(word) == "callbacks" and name in re.findall(r"\w+", value_of(word))]
        if named and not _sets_switch(words, name):
            raise ConfigError(f"{named[0]} has no effect, since callbacks.{name} is off; add {_switch(name)}")
        with open_dict(config):
            config.callbacks.pop(name)


def _switch(name: str) -> str:
    key, value = next(iter(SWITCHES[name].items()))
    return f"callbacks.{name}.{key}={value}"


def _sets_switch(words: list[str], name: str) -> bool:
    return not {f"callbacks.{name}.{key}" for key in SWITCHES[name]}.isdisjoint(map(key_of, words))


def _check_batch(config: DictConfig, overrides: list[str]) -> None:
    """A typed data.batch_size replaces a recipe's data.global_batch_size. Raises ConfigError if both are typed."""
    words = [word for word in overrides if key_of(word) == "data.batch_size"]
    if not words or (size := OmegaConf.select(config, "data.global_batch_size")) is None:
        return
    if "data.global_batch_size" in map(key_of, overrides):
        raise ConfigError(
            f"{words[-1]} has no effect beside data.global_batch_size={size}, the batch of all processes together; "
            "set only one of the two"
        )
    config.data.global_batch_size = None


def _check_image_size(config: DictConfig, overrides: list[str]) -> None:
    """Refuse data.image_size on the command line if a schedule of growing images, perhaps of a recipe, ends at another
    size."""
    words = [word for word in overrides if key_of(word) == "data.image_size"]
    schedule = OmegaConf.select(config, "callbacks.resolution_schedule")
    end = OmegaConf.select(config, "callbacks.resolution_schedule.end")
    if words and end is not None and config.data.image_size != end:
        raise ConfigError(
            f"{words[-1]} has no effect on training beside callbacks.resolution_schedule, whose images grow from "
            f"{schedule.start} to {schedule.end} pixels; set its start and end, or add ~callbacks.resolution_schedule"
        )


def register_resolvers() -> None:
    """Register the functions that values of conf/ call, such as `${by_epochs:[0,off],[20,on]}`."""
    for function in (_of_weights, _by_epochs, _share_of_epochs, _published, train_program):
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


def task_overrides() -> list[str]:
    """The overrides of this run of train.py, without those of Hydra itself."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def has_other_overrides(folder: Path) -> bool:
    """Whether `record_configuration` wrote other overrides into `folder` than this run of train.py has."""
    file = folder / RECORD / "overrides.yaml"
    if not (HydraConfig.initialized() and file.is_file()):
        return False
    texts = file.read_text(errors="replace"), OmegaConf.to_yaml(task_overrides())
    before, now = ([line for line in text.splitlines() if not line.startswith("- resume_from=")] for text in texts)
    return before != now


def record_configuration(config: DictConfig, folder: Path, recipes: Mapping[int, Mapping[str, Any]], step: int) -> None:
    """Write the configuration into `folder`, as Hydra does where hydra.output_subdir is not null. Hydra writes before
    the run has locked its folder, so a refused start would replace the configuration of the run that trains there.

    recipes: those of the run by their first step. Each recipe but the last is written to config_until_step_N.yaml; for
    an unknown first recipe, the configuration that stands there. step: at which this start begins. Raises
    RunFolderError.
    """
    if HydraConfig.initialized():
        hydra: DictConfig = HydraConfig.instance().cfg  # type: ignore[assignment]
        parts = {"config": config, "hydra": hydra, "overrides": hydra.hydra.overrides.task}
        record, begins = folder / RECORD, sorted(recipes)
        until = {record / f"config_until_step_{end}.yaml": recipes[begin] for begin, end in pairwise(begins)}
        try:
            record.mkdir(exist_ok=True)
            unknown = record / f"config_until_step_{begins[0]}.yaml"
            if begins[0] == step > 0 and (record / "config.yaml").exists() and not unknown.exists():
                (record / "config.yaml").rename(unknown)
            for stale in {*record.glob("config_until_step_*.yaml")} - {unknown, *until}:  # of a run that was replaced
                stale.unlink()
            for file, recipe in until.items():
                write_atomically(file, OmegaConf.to_yaml(OmegaConf.create(dict(recipe))))
            for name, part in parts.items():
                write_atomically(record / f"{name}.yaml", OmegaConf.to_yaml(part))
        except OSError as error:
            raise RunFolderError(
                f"cannot write {folder / RECORD} ({error.strerror}); make room there, or choose another folder with "
                "hydra.run.dir=FOLDER"
            ) from error
