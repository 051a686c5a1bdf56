"""What the command line means before Hydra reads it, and what to say when Hydra cannot."""

import difflib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imagenet_opt.cli.preempted import leave
from imagenet_opt.cli.sweep_plugins import INSTALL
from imagenet_opt.cli.terminal import printable
from imagenet_opt.errors import ConfigError, ImagenetOptError, Preempted
from imagenet_opt.run import slurm

_HINTS = {
    "'model/": "for any other network of timm say model.name, such as model.name=resnet101",
    "'hydra/launcher/submitit_": f"it comes with {INSTALL}",
    "'hydra/sweeper/": f"others than basic come with {INSTALL}",
}
"""Options of groups that Hydra could not find -> what to do."""
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

    A rehearsal comes last, so that no recipe changes what it needs.
    """
    overrides = _rehearsal_last(overrides)

    def given(*starts: str) -> bool:
        return any(override.startswith(starts) for override in overrides)

    if _HELP & set(overrides) or given("experiment=", "+experiment="):
        return overrides
    if given("data.root=", "++data.root=") and not given("data="):
        return _beside(overrides, "data=folder")
    if not given("data=") or given("data=demo"):
        return _beside(overrides, "+experiment=demo")
    return overrides


def _rehearsal_last(overrides: list[str]) -> list[str]:
    """`rehearse=NAME` as a group that is added behind all others, which Hydra composes in this order."""
    groups = [word for word in overrides if word.startswith(("rehearse=", "+rehearse="))]
    if not groups:
        return overrides
    others = [word for word in overrides if word not in groups]
    place = max((i + 1 for i, word in enumerate(others) if _is_override(word)), default=len(others))
    added = [f"+{word.lstrip('+')}" for word in groups if not word.endswith("=null")]
    return [*others[:place], *added, *others[place:]]


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
            raise ConfigError(f"torchrun starts several processes; say which folder they share: {key}=FOLDER")
        return overrides
    return _beside(overrides, f"{key}=runs/{job}")


def _beside(arguments: list[str], override: str) -> list[str]:
    """With `override` before the first one given: argparse takes no second group of them behind a flag."""
    places = [i for i, word in enumerate(arguments) if _is_override(word)]
    place = places[0] if places else len(arguments)
    return [*arguments[:place], override, *arguments[place:]]


def report_mistakes(command: Callable[[], Any]) -> Any:
    """Run `command`; a mistake of the user ends it with one line on stderr and status 2, without a traceback.

    A run that was asked to stop ends likewise, with status 75.
    """
    try:
        return command()
    except Preempted as error:
        sys.exit(leave(error))
    except ImagenetOptError as error:
        sys.exit(_say(f"{type(error).__name__}: {error}"))
    except (HydraException, OmegaConfBaseException) as error:
        sys.exit(_say(f"ConfigError: {_explain(error)}"))
    except OSError as error:
        if not _while_hydra_makes_the_run_folder(error):
            raise
        place = f"{error.filename}: {error.strerror}" if error.filename else error
        sys.exit(
            _say(f"RunFolderError: cannot write the run folder: {place}; choose another with hydra.run.dir=FOLDER")
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from imagenet_opt.cli.sweep import ended_early

        if (reason := ended_early(error)) is None:
            raise
        sys.exit(_say(f"TrainingError: {reason}"))


def _say(message: str) -> int:
    print(printable(" ".join(line.strip() for line in message.splitlines() if line.strip())), file=sys.stderr)
    return 2


def _while_hydra_makes_the_run_folder(error: OSError) -> bool:
    calls = [(Path(frame.filename).parts[-3:], frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    inside = [name for file, name in calls if file == ("hydra", "core", "utils.py")]
    return bool(inside) and not any(file[-1] == "train.py" and name == "train" for file, name in calls)


def _explain(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None)
    text = " ".join(str(error).partition("Config search path")[0].split())
    if not key or "Could not override" not in text:
        return "; ".join([text, *(hint for group, hint in _HINTS.items() if f"Could not find {group}" in text)])
    near = difflib.get_close_matches(key, list(_keys(_default_config())), n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "python train.py --cfg job shows every key"
    return f"there is no key {key}; {hint}"


def _default_config() -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose("train")


def _keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in map(str, config):
        name = f"{prefix}{key}"
        yield name
        if not OmegaConf.is_missing(config, key) and isinstance(node := config._get_node(key), DictConfig):
            yield from _keys(node, f"{name}.")
