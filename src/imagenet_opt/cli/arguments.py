"""Parsing of arguments that several commands have."""

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.config.keys import unknown_flag
from imagenet_opt.config.overrides import key_of, value_of
from imagenet_opt.display.progress import DAY
from imagenet_opt.errors import CheckpointNotFound, ConfigError, did_you_mean
from imagenet_opt.object_storage import check_package, is_hub, is_url
from imagenet_opt.run.checkpoint.names import best_of

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_LEAST_SECONDS = 10
_FLAG = re.compile(r"^argument (--[\w-]+):")
T = TypeVar("T", int, float)


class Parser(argparse.ArgumentParser):
    """Parser of `imagenet-opt <command>`; its errors are ConfigErrors that name the command's help.

    overrides: whether the command takes overrides of train.py, in any order with its flags.
    """

    def __init__(self, command: str, *, overrides: bool = True) -> None:
        super().__init__(f"imagenet-opt {command}", add_help=False, allow_abbrev=False)
        self._takes_overrides = overrides
        if overrides:
            self.add_argument("overrides", nargs="*")

    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("unrecognized arguments: ").split()
        if self._takes_overrides and words[0].startswith("-"):
            message = unknown_flag(words)
        raise ConfigError(_FLAG.sub(r"\1", message) + f" ({self.prog} --help)")


def between(least: T, most: float) -> Callable[[str], T]:
    """Type of a flag with a number in this range; a whole number if `least` is one."""

    def number(text: str) -> T:
        with suppress(ValueError):
            if least <= (value := type(least)(text)) <= most:
                return value
        kind = "whole number" if isinstance(least, int) else "number"
        raise argparse.ArgumentTypeError(f"{text} must be a {kind} from {least} to {most}")

    return number


def number_of(key: str, text: str, least: T, most: float) -> T:
    """The number of a word KEY=TEXT. Raises ConfigError for a text that is none, and for a number out of range."""
    try:
        return between(least, most)(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{key}={error}") from error


def new_file(text: str) -> Path:
    """Type of a flag with a file to write."""
    file = Path(text)
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written; choose a file in a folder that exists")
    return file


def write_outputs(
    options: argparse.Namespace, numbers: Callable[[], Mapping[str, Any]], page: Callable[[], str] | None = None
) -> None:
    """Write the files that --json and --page name, if they were given. Raises ConfigError."""
    from imagenet_opt.display.terminal_table import strict_json

    write_file(options.json, lambda: strict_json(numbers()))
    if page is not None:
        write_file(options.page, page, "--page")


def write_file(file: Path | None, text: Callable[[], str], flag: str = "--json") -> None:
    """Write the file that `flag` names, if it was given; a link or a device, such as /dev/stdout, is not replaced.
    Raises ConfigError."""
    if file is None:
        return
    try:
        write = Path.write_text if file.is_symlink() or (file.exists() and not file.is_file()) else write_atomically
        write(file, text())
    except OSError as error:
        raise ConfigError(f"{flag} {file} cannot be written: {error.strerror}; choose another place") from error


def local_or_url(place: str, key: str) -> Path | str:
    """A path, or a URL without a slash at its end. key: the option that has the value `place`. Raises ConfigError if
    the package that reads URLs is not installed."""
    if not is_url(place) and not is_hub(place):
        return Path(place).expanduser()
    if is_url(place):
        check_package(place, key)
    return place.rstrip("/")


def budget_seconds(text: str) -> float:
    """Type of --budget: a time such as 90s, 5m, 2h or 45 (seconds). Raises ConfigError."""
    match = _BUDGET.fullmatch(text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not _LEAST_SECONDS <= seconds <= DAY:
        raise ConfigError(f"--budget {text} must be a time from {_LEAST_SECONDS}s to 24h, such as 90s or 5m")
    return seconds


def key_and_value(word: str, keys: Sequence[str], flags: Sequence[str] = ()) -> tuple[str, str]:
    """Split a word KEY=VALUE. The value is not parsed as YAML. flags: options that the command also has.

    Raises ConfigError for a key that is not one of `keys`, and for a missing value.
    """
    key, value = key_of(word), value_of(word)
    if key not in keys:
        names = [*(f"{known}=" for known in keys), *flags]
        hint = did_you_mean(key, names, f"expected {', '.join(names)}")
        raise ConfigError(f"there is no key {key}; {hint}")
    if not value:
        raise ConfigError(f"{key} has no value; expected {key}=VALUE")
    return key, value


def checkpoint_of(value: str) -> Path | str:
    """The value of ckpt=: a file or URL as it is; of a run's folder its best.ckpt, else its last.ckpt. Raises
    CheckpointNotFound if there is no such file."""
    ckpt = local_or_url(value, "ckpt")
    if isinstance(ckpt, Path):
        ckpt = best_of(ckpt) if ckpt.is_dir() else ckpt
        if not ckpt.is_file():
            raise CheckpointNotFound(f"no checkpoint at {ckpt} (ckpt); expected a run folder or a .ckpt file")
    return ckpt
