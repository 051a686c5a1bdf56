"""Completes the command line before Hydra reads it, and explains Hydra's errors."""

import os
import re
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.errors import ConfigError
from imagenet_opt.run.stop import slurm

typed: list[str] = []
"""The command line that was typed, where a command has replaced `sys.argv`; else empty."""

_HELP = {"--help", "-h", "--hydra-help", "--version"}
_NO_RUN = _HELP | {"--cfg", "-c", "--info", "-i"}
"""Flags with which train.py prints something and does not train."""
RECORD = ".hydra"
"""Folder of the configuration in a run folder."""


def config_folder() -> Path:
    """The folder conf/: inside the installed package, or beside src/ in a checkout."""
    package = Path(__file__).parents[1]
    return package / "conf" if (package / "conf").is_dir() else package.parents[1] / "conf"


def complete(overrides: list[str]) -> list[str]:
    """Add implied overrides: data.root implies data=folder, which an experiment may have replaced; demo data alone
    implies experiment=demo.

    The groups `experiment` and `rehearse` may be written with a plus; GROUP=null leaves the group out. Several
    additions to callbacks, or to logger, become one.
    """
    overrides = _joined(_joined([_of_default_group(word) for word in overrides], "+callbacks="), "+logger=")

    def has(*beginnings: str) -> bool:
        return any(override.startswith(beginnings) for override in overrides)

    if _HELP & set(overrides):
        return overrides
    if has("data.root=", "++data.root=") and not has("data="):
        return insert(overrides, "data=folder")
    if not has("experiment=", "~experiment") and (not has("data=") or has("data=demo")):
        return insert(overrides, "experiment=demo")
    return overrides


def _of_default_group(word: str) -> str:
    """Adapt an override of a group in conf/train.yaml's defaults: Hydra cannot add such a group or set it to null."""
    name, _, option = word.removeprefix("+").partition("=")
    if name not in ("experiment", "rehearse"):
        return word
    return f"~{name}" if option == "null" else f"{name}={option}"


def _joined(words: list[str], beginning: str) -> list[str]:
    """Join `+GROUP=A +GROUP=B` to `+GROUP=[A,B]`: Hydra takes one addition to each group. Additions with alternatives
    of a sweep (`A,B`) stay as they are."""
    options = [word.removeprefix(beginning) for word in words if word.startswith(beginning)]
    if len(options) < 2 or any("," in option and not option.startswith("[") for option in options):
        return words
    joined = f"{beginning}[{','.join(option.strip('[]') for option in options)}]"
    return list(dict.fromkeys(joined if word.startswith(beginning) else word for word in words))


def is_typed(word: str) -> bool:
    """Whether the command line of this run of train.py has the override `word`; False outside of train.py."""
    typed = HydraConfig.get().overrides.task if HydraConfig.initialized() else ()
    return any(one.lstrip("+").lower() == word for one in typed)


def has_other_overrides(folder: Path) -> bool:
    """Whether `record_configuration` wrote other overrides into `folder` than this run of train.py has."""
    file = folder / RECORD / "overrides.yaml"
    if not (HydraConfig.initialized() and file.is_file()):
        return False
    texts = file.read_text(errors="replace"), OmegaConf.to_yaml(HydraConfig.get().overrides.task)
    before, now = ([line for line in text.splitlines() if not line.startswith("- resume_from=")] for text in texts)
    return before != now


def record_configuration(config: DictConfig, folder: Path) -> None:
    """Write the configuration into `folder`, as Hydra does where hydra.output_subdir is not null. Hydra writes before
    the run has locked its folder, so a refused start would replace the configuration of the run that trains there."""
    if HydraConfig.initialized():
        hydra: DictConfig = HydraConfig.instance().cfg  # type: ignore[assignment]
        parts = {"config": config, "hydra": hydra, "overrides": hydra.hydra.overrides.task}
        (folder / RECORD).mkdir(exist_ok=True)
        for name, part in parts.items():
            write_atomically(folder / RECORD / f"{name}.yaml", OmegaConf.to_yaml(part))


def follow_job(overrides: list[str]) -> list[str]:
    """Add hydra.run.dir, or hydra.sweep.dir, in a SLURM job: a folder whose name stays the same when SLURM requeues
    the job. A folder on the command line is kept.

    Raises ConfigError for several processes of torchrun: each would choose a folder by its own clock.
    """
    job = slurm.folder_name()
    key = "hydra.sweep.dir" if {"-m", "--multirun"} & set(overrides) else "hydra.run.dir"
    if any(word.lstrip("+").startswith(f"{key}=") for word in overrides):
        return overrides
    if job is None:
        trains = not _NO_RUN & {word.partition("=")[0] for word in overrides}
        if trains and "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE") != "1":
            raise ConfigError(f"torchrun starts several processes; set the folder that they share: {key}=FOLDER")
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
