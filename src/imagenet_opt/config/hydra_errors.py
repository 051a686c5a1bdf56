"""Explains Hydra's and OmegaConf's errors in the words of this project."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imagenet_opt.config.overrides import config_folder, train_program
from imagenet_opt.errors import did_you_mean

_HINTS = {
    "model/": "; any other network of timm: model.name=NAME, such as model.name=resnet101",
    "optimizer/": "; any other optimizer of timm: optimizer.name=NAME",
    "hydra/launcher/submitit_": '; it comes with pip install "imagenet-opt[sweep]"',
    "hydra/sweeper/": '; others than basic come with pip install "imagenet-opt[sweep]"',
}
"""Prefix of GROUP/OPTION that Hydra could not find -> further hint."""


def explain(error: Exception) -> str:
    """One line about an error of Hydra or OmegaConf, with the key and the remedy."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None)
    text = " ".join(str(error).partition("Config search path")[0].split())
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and "/" in error.missing_cfg_file:
        return _no_option(error.missing_cfg_file, error.options)
    if isinstance(error, OverrideParseException) and "=" not in (word := error.override):
        is_experiment = (config_folder() / "experiment" / f"{word}.yaml").is_file()
        example = f"experiment={word}" if is_experiment else "data.batch_size=64"
        return f"{word}: options are KEY=VALUE, such as {example}"
    if absent := re.match(r"Could not delete from config\. '(.+)' does not exist", text):
        return f"leave out ~{absent[1]}: this configuration has no {absent[1]}"
    if not key or "Could not override" not in text:
        return text
    if key in (keys := _default_keys()):  # of a group for which an experiment chooses another file
        group = key.partition(".")[0]
        hint = "add data=folder" if group == "data" else "--cfg job shows the keys that it has"
        return f"there is no key {key} in the {group} of this experiment; {hint}"
    groups = sorted(folder.name for folder in config_folder().iterdir() if folder.is_dir())
    near = [known for known in [*keys, *groups] if _is_like(key, known)]
    hint = did_you_mean(key, near, f"{train_program()} --cfg job shows every key")
    return f"there is no key {key}; {hint}"


def _is_like(key: str, known: str) -> bool:
    """Whether the last parts of two keys are alike: an equal group makes no key a good suggestion."""
    return SequenceMatcher(None, key.rpartition(".")[2], known.rpartition(".")[2]).ratio() >= 0.6


def _no_option(place: str, known: Sequence[str] | None) -> str:
    """place: GROUP/OPTION. known: the options of the group; Hydra does not list them for an option of a list."""
    group, _, option = place.rpartition("/")
    options = known or sorted(file.stem for file in (config_folder() / group).glob("*.yaml"))
    similar = did_you_mean(option, options, "")
    hint = "".join(hint for prefix, hint in _HINTS.items() if place.startswith(prefix))
    return f"there is no {group} '{option}'; {similar}{' ' * bool(similar)}options: {', '.join(options)}{hint}"


def _default_keys() -> list[str]:
    """All keys of conf/train.yaml and of the groups that it chooses."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return list(_keys(OmegaConf.to_container(compose("train"))))


def _keys(value: Any, prefix: str = "") -> Iterator[str]:
    for key, child in value.items() if isinstance(value, Mapping) else ():
        yield f"{prefix}{key}"
        yield from _keys(child, f"{prefix}{key}.")
