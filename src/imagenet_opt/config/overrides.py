"""Completes the command line before Hydra reads it, and explains Hydra's errors."""

import os
from pathlib import Path

from imagenet_opt.errors import ConfigError
from imagenet_opt.run.stop import slurm

_HELP = {"--help", "-h", "--hydra-help", "--version"}
_SHOWS = _HELP | {"--cfg", "-c", "--info", "-i"}
"""Flags with which nothing is run."""


def config_folder() -> Path:
    """The folder conf/: inside the installed package, or beside src/ in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def complete(overrides: list[str]) -> list[str]:
    """Add what the given overrides imply: a `data.root` means data=folder; demo data alone means the demo recipe.

    The groups `experiment` and `rehearse` may be written with a plus; GROUP=null leaves the group out.
    """
    overrides = [_of_default_group(word) for word in overrides]

    def given(*starts: str) -> bool:
        return any(override.startswith(starts) for override in overrides)

    if _HELP & set(overrides) or given("experiment=", "~experiment"):
        return overrides
    if given("data.root=", "++data.root=") and not given("data="):
        return _beside(overrides, "data=folder")
    if not given("data=") or given("data=demo"):
        return _beside(overrides, "experiment=demo")
    return overrides


def _of_default_group(word: str) -> str:
    """Adapt an override of a group in conf/train.yaml's defaults: Hydra cannot add such a group or set it to null."""
    name, _, option = word.removeprefix("+").partition("=")
    if name not in ("experiment", "rehearse"):
        return word
    return f"~{name}" if option == "null" else f"{name}={option}"


def _is_override(word: str) -> bool:
    return "=" in word and not word.startswith("-")


def follow_job(overrides: list[str]) -> list[str]:
    """In a SLURM job, the folder that a job queued again finds, of a run or a multirun, unless one is given.

    Raises ConfigError for processes of torchrun, which would each name a folder by its own clock.
    """
    job = slurm.folder_name()
    key = "hydra.sweep.dir" if {"-m", "--multirun"} & set(overrides) else "hydra.run.dir"
    if any(word.lstrip("+").startswith(f"{key}=") for word in overrides):
        return overrides
    if job is None:
        runs = not _SHOWS & {word.partition("=")[0] for word in overrides}
        if runs and "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE") != "1":
            raise ConfigError(f"torchrun starts several processes; set the folder that they share: {key}=FOLDER")
        return overrides
    return _beside(overrides, f"{key}=runs/{job}")


def _beside(arguments: list[str], override: str) -> list[str]:
    """With `override` before the first one given: argparse takes no second group of them behind a flag."""
    places = [i for i, word in enumerate(arguments) if _is_override(word)]
    place = places[0] if places else len(arguments)
    return [*arguments[:place], override, *arguments[place:]]
