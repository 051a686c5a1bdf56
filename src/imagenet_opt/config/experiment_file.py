"""Writes the results of tune, doctor and study as an experiment: conf/experiment/tuned_<host>_<kind>.yaml."""

import os
import platform
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.config.overrides import complete, config_folder, key_of, train_program, value_of
from imagenet_opt.config.trust import entries
from imagenet_opt.errors import ConfigError, printable


def check_writable_experiments() -> None:
    """Check that experiments can be written, before measurements that may take an hour. Raises ConfigError."""
    folder = config_folder() / "experiment"
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written, and the result belongs there; make the folder writable")


def write_tuned(kind: str, overrides: Sequence[str], header: Sequence[str]) -> Path:
    """Write these overrides of train.py as an experiment and return the file. kind: the command that found them.
    header: lines about the measurements. Raises ConfigError if the file cannot be written."""
    for word in overrides:
        if reason := unwritable(word):
            raise ConfigError(f"{word} {reason}; set it yourself")
    file = config_folder() / "experiment" / f"tuned_{host()}_{kind}.yaml"
    keys = OmegaConf.to_yaml(OmegaConf.from_dotlist([word.lstrip("+") for word in overrides]))
    try:
        write_atomically(file, "\n".join(["# @package _global_", *(f"# {printable(line)}" for line in header), keys]))
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}; set {' '.join(overrides)} yourself") from error
    return file


def unwritable(word: str) -> str | None:
    """Why an experiment file cannot contain this override of train.py; None if it can."""
    if word.startswith("~"):
        return "removes a key; an experiment file cannot"
    is_group = (config_folder() / key_of(word).partition("@")[0]).is_dir()
    return "chooses a file of a group; a written experiment cannot" if is_group else None


def how_to_train(file: Path, overrides: Sequence[str]) -> str:
    """A line with the file and the command that trains with the file and `overrides`. The command leaves out overrides
    of keys that the file sets, because an override takes precedence over an experiment."""
    keys = {place.partition("[")[0] for place, _ in entries(OmegaConf.to_container(OmegaConf.load(file)))}
    experiments: list[str] = []
    others: list[str] = []
    for word in complete(list(overrides)):
        if key_of(word) == "experiment":
            experiments += [name.strip() for name in value_of(word).strip("[]").split(",")]
        elif key_of(word) not in keys:
            others.append(word)
    names = [*(name for name in dict.fromkeys(experiments) if name != file.stem), file.stem]
    experiment = f"[{','.join(names)}]" if len(names) > 1 else file.stem
    command = f"{train_program()} {shlex.join([*others, f'experiment={experiment}'])}"
    return f"written to {file}; train with it: {command}"


def host() -> str:
    """This machine's name, as used in the file's name."""
    return re.sub(r"\W+", "_", platform.node()) or "host"
