"""Explains Hydra's and OmegaConf's errors in the words of this project."""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from imagenet_opt.config.keys import unknown
from imagenet_opt.config.overrides import config_folder, last_value, typed
from imagenet_opt.errors import did_you_mean

_HINTS = {
    "model/": "; any other network of timm: model.name=NAME, such as model.name=resnet101",
    "optimizer/": "; any other optimizer of timm: optimizer.name=NAME",
    "hydra/launcher/submitit_": '; it comes with pip install "imagenet-opt[sweep]"',
    "hydra/sweeper/": '; others than basic come with pip install "imagenet-opt[sweep]"',
}
"""Prefix of GROUP/OPTION that Hydra could not find -> further hint."""


def explain(error: Exception, words: Iterable[str]) -> str:
    """One line about an error of Hydra or OmegaConf, with the key and the remedy. words: of the command line."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None)
    text = " ".join(str(error).partition("Config search path")[0].split())
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and "/" in error.missing_cfg_file:
        return _no_option(error.missing_cfg_file, error.options)
    if isinstance(error, OverrideParseException) and "=" not in (word := error.override):
        is_experiment = (config_folder() / "experiment" / f"{word}.yaml").is_file()
        if not is_experiment and Path(word).is_dir():
            return f"{word}: options are KEY=VALUE; did you mean data.root={word}?"
        example = f"experiment={word}" if is_experiment else "data.batch_size=64"
        return f"{word}: options are KEY=VALUE, such as {example}"
    if isinstance(error, OverrideParseException):
        key = error.override.partition("=")[0]
        return (
            f"{error.override} cannot be read: close its brackets and quotes, and put a text with special characters "
            f"into quotes: \"{key}='VALUE'\""
        )
    if absent := re.match(r"Could not delete from config\. '(.+)' does not exist", text):
        return f"leave out ~{absent[1]}: this configuration has no {absent[1]}"
    if not key or "Could not override" not in text:
        return text
    return unknown(key, last_value(words, key))


def _no_option(place: str, known: Sequence[str] | None) -> str:
    """place: GROUP/OPTION. known: the options of the group; Hydra does not list them for an option of a list."""
    group, _, option = place.rpartition("/")
    if (Path("conf") / f"{place}.yaml").is_file() and Path("train.py").is_file():
        command = "".join(f"{word} " for word in (typed or sys.argv)[1:2] if word.isalpha() and word != "train")
        program = f"python train.py {command}{group}={option}"
        return f"the package has no {group} '{option}'; this folder's project has: {program}"
    options = known or sorted(file.stem for file in (config_folder() / group).glob("*.yaml"))
    similar = did_you_mean(option, options, "")
    hint = "".join(hint for prefix, hint in _HINTS.items() if place.startswith(prefix))
    return f"there is no {group} '{option}'; {f'{similar} ' if similar else ''}options: {', '.join(options)}{hint}"
