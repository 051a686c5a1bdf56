"""The words of a command line, KEY=VALUE: their parts, and their completion before Hydra reads them."""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from imagenet_opt.errors import ConfigError

typed: list[str] = []
"""The command line that was typed, where a command has replaced `sys.argv`; else empty."""

_INTERACTIVE = ("bash", "interactive")  # names of SLURM jobs
_MULTIRUN = {"-m", "--multirun"}
_HELP = {"--help", "-h", "--hydra-help", "--version"}
_NO_RUN = _HELP | {"--cfg", "-c", "--info", "-i"}
"""Flags with which train.py prints something and does not train."""


def key_of(word: str) -> str:
    """The key that a word sets; of +KEY=VALUE and ++KEY=VALUE, which add it, and of ~KEY, which removes it, too."""
    return word.lstrip("+~").partition("=")[0]


def value_of(word: str) -> str:
    """The text after the first equals sign, as typed."""
    return word.partition("=")[2]


def last_value(words: Iterable[str], key: str) -> str | None:
    """The value of `key` that counts, which is its last; None if no word sets `key`."""
    return ([None, *(value_of(word) for word in words if key_of(word) == key)])[-1]


def without(words: Iterable[str], *keys: str) -> list[str]:
    """The words that set none of `keys` and nothing below them."""
    return [word for word in words if not f"{key_of(word)}.".startswith(tuple(f"{key}." for key in keys))]


def config_folder() -> Path:
    """The folder conf/: inside the installed package, or beside src/ in a checkout."""
    package = Path(__file__).parents[1]
    return package / "conf" if (package / "conf").is_dir() else package.parents[1] / "conf"


def complete(overrides: list[str]) -> list[str]:
    """Add implied overrides: data.root implies data=folder, which an experiment may have replaced; demo data alone
    implies experiment=demo.

    The groups `experiment` and `rehearse` may be written with a plus; GROUP=null leaves the group out.
    """
    overrides = [_of_default_group(_with_home(word)) for word in overrides]
    overrides.sort(key=lambda word: word not in _MULTIRUN)  # argparse takes no overrides on both sides of a flag
    if _HELP & set(overrides):
        return overrides
    keys, data = set(map(key_of, overrides)), last_value(overrides, "data")
    if "data.root" in keys and data is None:
        return insert(overrides, "data=folder")
    if "experiment" not in keys and (data is None or data.startswith("demo")):
        return insert(overrides, "experiment=demo")
    return overrides


def _with_home(word: str) -> str:
    """KEY=~/PATH with the full path: shells leave the sign to the program, and Hydra cannot read it."""
    key, _, value = word.partition("=")
    return f"{key}={quoted(os.path.expanduser(value))}" if value.startswith("~/") and "," not in value else word


def _of_default_group(word: str) -> str:
    """Adapt an override of a group in conf/train.yaml's defaults: Hydra cannot add such a group or set it to null. An
    option of timm's network needs no plus."""
    name = key_of(word)
    if word.startswith("model.options"):
        return f"++{word}"
    if name in ("logger", "callbacks") and value_of(word) == "null":
        return f"{name}=[]"
    if name not in ("experiment", "rehearse") or word.startswith(("~", "++")):
        return word
    return f"~{name}" if value_of(word) == "null" else f"{name}={value_of(word)}"


def follow_job(overrides: list[str]) -> list[str]:
    """Add hydra.run.dir, or hydra.sweep.dir, in a SLURM job: a folder whose name stays the same when SLURM requeues
    the job. A folder on the command line is kept.

    Raises ConfigError for several processes of torchrun: each would choose a folder by its own clock.
    """
    job = slurm_folder()
    key = "hydra.sweep.dir" if _MULTIRUN & set(overrides) else "hydra.run.dir"
    if last_value(overrides, key) is not None:
        return overrides
    if job is None:
        trains, single = (
            not _NO_RUN & set(map(key_of, overrides)),
            {"WORLD_SIZE": "1", "TORCHELASTIC_MAX_RESTARTS": "0"},
        )
        if trains and "TORCHELASTIC_RUN_ID" in os.environ and single.items() - os.environ.items():
            raise ConfigError(
                f"torchrun starts several processes, or a process again; set the folder that they share: {key}=FOLDER"
            )
        return overrides
    return insert(overrides, f"{key}=runs/{job}")


def quoted(value: object) -> str:
    """`value` as Hydra's grammar reads a string: in quotes, unless it has only characters that mean nothing there."""
    text = str(value)
    return text if re.fullmatch(r"[\w/.-]+", text) else "'" + text.replace("'", r"\'") + "'"


def insert(words: list[str], override: str) -> list[str]:
    """Insert `override` before the first override: argparse accepts no second group of overrides after a flag."""
    places = [i for i, word in enumerate(words) if "=" in word and not word.startswith("-")]
    place = places[0] if places else len(words)
    return [*words[:place], override, *words[place:]]


def train_program() -> str:
    """The program that trains, for advice: train.py if a script was started, else the installed command."""
    return "python train.py" if (typed or sys.argv)[0].endswith(".py") else "imagenet-opt train"


def slurm_folder(environment: Mapping[str, str] = os.environ) -> str | None:
    """Name of the run folder of a SLURM job, which a requeue keeps; None outside of SLURM and in interactive shells.

    slurm_<job>, slurm_<array>_<task> in an array; a second `srun` in the same job adds its number.
    """
    job = environment.get("SLURM_JOB_ID")
    if not job or environment.get("SLURM_JOB_NAME") in _INTERACTIVE:
        return None
    if array := environment.get("SLURM_ARRAY_JOB_ID"):
        job = f"{array}_{environment.get('SLURM_ARRAY_TASK_ID', '0')}"
    step = environment.get("SLURM_STEP_ID", "0")
    return f"slurm_{job}" if step == "0" else f"slurm_{job}_step{step}"
