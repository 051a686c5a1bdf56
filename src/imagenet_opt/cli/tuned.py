"""What a command has found to be better here, kept as an experiment: conf/experiment/tuned_<host>_<kind>.yaml."""

import platform
import re
from collections.abc import Sequence
from pathlib import Path

from imagenet_opt.errors import ConfigError, printable


def write_tuned(kind: str, overrides: Sequence[str], header: Sequence[str]) -> Path:
    """The file of these overrides of train.py. kind: the command that found them. header: what was measured, by line.

    Raises ConfigError where it cannot be written.
    """
    from omegaconf import OmegaConf

    from imagenet_opt.cli.overrides import config_folder

    for word in overrides:
        if word.startswith("~") or "." not in word.partition("=")[0]:
            raise ConfigError(
                f"{word} chooses a group or removes a key, which a written experiment cannot; set it yourself"
            )
    file = config_folder() / "experiment" / f"tuned_{host()}_{kind}.yaml"
    keys = OmegaConf.to_yaml(OmegaConf.from_dotlist([word.lstrip("+") for word in overrides]))
    try:
        file.write_text("\n".join(["# @package _global_", *(f"# {printable(line)}" for line in header), keys]))
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}; set {' '.join(overrides)} yourself") from error
    return file


def how_to_train(file: Path, overrides: Sequence[str]) -> str:
    """The line that says where it is and how to train with it, beside the experiments among `overrides`."""
    given = [word.partition("=")[2].strip("[]") for word in overrides if word.lstrip("+").startswith("experiment=")]
    names = ",".join([*given, file.stem])
    return f"written to {file}; train with +experiment={f'[{names}]' if given else names}"


def host() -> str:
    """This machine's name, as a part of a file's."""
    return re.sub(r"\W+", "_", platform.node()) or "host"
