"""Writes the findings of a command as an experiment: conf/experiment/tuned_<host>_<kind>.yaml."""

import os
import platform
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.errors import ConfigError, printable


def check_writable_experiments() -> None:
    """Check that experiments can be written, before measurements that may take an hour. Raises ConfigError."""
    from imagenet_opt.config.overrides import config_folder

    folder = config_folder() / "experiment"
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written, and the result belongs there; make the folder writable")


def write_tuned(kind: str, overrides: Sequence[str], header: Sequence[str]) -> Path:
    """Write these overrides of train.py as an experiment and return the file. kind: the command that found them.
    header: lines about the measurements. Raises ConfigError if the file cannot be written."""
    from omegaconf import OmegaConf

    from imagenet_opt.config.overrides import config_folder

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
    from imagenet_opt.config.overrides import config_folder

    group = word.lstrip("+~").partition("=")[0].partition("@")[0]
    if word.startswith("~"):
        return "removes a key; an experiment file cannot"
    return "chooses a file of a group; a written experiment cannot" if (config_folder() / group).is_dir() else None


def how_to_train(file: Path, overrides: Sequence[str]) -> str:
    """A line that says where the file is and how to train with it and `overrides`. Overrides of keys that the file
    sets are left out, because the command line beats an experiment."""
    from omegaconf import OmegaConf

    from imagenet_opt.config.allowed_targets import leaves
    from imagenet_opt.config.overrides import complete

    kept = {place.partition("[")[0] for place, _, _ in leaves(OmegaConf.to_container(OmegaConf.load(file)))}
    names: list[str] = []
    rest: list[str] = []
    for word in complete(list(overrides)):
        key, _, value = word.lstrip("+~").partition("=")
        if key == "experiment":
            names += [name.strip() for name in value.strip("[]").split(",")]
        elif key not in kept:
            rest.append(word)
    names = [*(name for name in dict.fromkeys(names) if name != file.stem), file.stem]
    chosen = f"[{','.join(names)}]" if len(names) > 1 else file.stem
    command = shlex.join(["python", "train.py", *rest, f"+experiment={chosen}"])
    return f"written to {file}; train with it: {command}"


def host() -> str:
    """This machine's name, as used in the file's name."""
    return re.sub(r"\W+", "_", platform.node()) or "host"
