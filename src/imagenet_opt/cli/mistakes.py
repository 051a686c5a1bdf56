"""Reports a user's mistake in one line, with the key and the remedy."""

import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imagenet_opt.config.hydra_plugins import INSTALL
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.config.removed_keys import explain_removed
from imagenet_opt.display.printable import printable
from imagenet_opt.errors import ConfigError, ImagenetOptError, Preempted, did_you_mean
from imagenet_opt.training.preempted import leave

_HINTS = {
    "model/": "; any other network of timm: model.name=NAME, such as model.name=resnet101",
    "optimizer/": "; any other optimizer of timm: optimizer.name=NAME",
    "hydra/launcher/submitit_": f"; it comes with {INSTALL}",
    "hydra/sweeper/": f"; others than basic come with {INSTALL}",
}
"""Prefix of GROUP/OPTION that Hydra could not find -> further hint."""


def report_mistakes(command: Callable[[], Any]) -> Any:
    """Run `command`. A mistake of the user ends the process with one line on stderr and status 2, without a traceback.

    A preempted run ends in the same way, with status 75.
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
        cause = f"{error.filename}: {error.strerror}" if error.filename else error
        sys.exit(
            _say(f"RunFolderError: cannot write the run folder: {cause}; choose another with hydra.run.dir=FOLDER")
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from imagenet_opt.sweep.job import ended_early

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


def check_flags(arguments: list[str]) -> None:
    """Check the flags of train.py. Raises ConfigError for a flag that Hydra does not have, such as --batch-size."""
    _, unknown = get_args_parser().parse_known_args(arguments)
    for word in unknown:
        flag = word.partition("=")[0]
        if not flag.startswith("--"):
            continue
        name = flag.removeprefix("--").replace("-", "_")
        key = next((key for key in _default_keys() if key.rpartition(".")[2] == name), None)
        example = "data.batch_size=64" if key is None else f"{key}=VALUE"
        raise ConfigError(f"{flag}: options are KEY=VALUE, such as {example}; python train.py --help lists them")


def _explain(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None)
    text = " ".join(str(error).partition("Config search path")[0].split())
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and "/" in error.missing_cfg_file:
        return _no_option(error.missing_cfg_file, error.options)
    if isinstance(error, OverrideParseException) and "=" not in (word := error.override):
        is_experiment = (config_folder() / "experiment" / f"{word}.yaml").is_file()
        example = f"experiment={word}" if is_experiment else "data.batch_size=64"
        return f"{word}: options are KEY=VALUE, such as {example}"
    if not key or "Could not override" not in text:
        return text
    if explanation := explain_removed(key):
        return explanation
    if key in (keys := _default_keys()):  # of a group for which an experiment chooses another file
        group = key.partition(".")[0]
        hint = "add data=folder" if group == "data" else "--cfg job shows the keys that it has"
        return f"there is no key {key} in the {group} of this experiment; {hint}"
    hint = did_you_mean(key, dict.fromkeys([*keys, *_groups()]), "python train.py --cfg job shows every key")
    return f"there is no key {key}; {hint}"


def _no_option(place: str, known: Sequence[str] | None) -> str:
    """place: GROUP/OPTION. known: the options of the group; Hydra does not list them for an option of a list."""
    group, _, option = place.rpartition("/")
    own = Path("conf", f"{place}.yaml")
    if group == "experiment" and own.is_file() and Path("train.py").is_file():
        return f"only the train.py of this folder reads {own}; type python train.py {shlex.join(sys.argv[1:])}"
    options = known or sorted(file.stem for file in (config_folder() / group).glob("*.yaml"))
    similar = did_you_mean(option, options, "")
    hint = "".join(hint for prefix, hint in _HINTS.items() if place.startswith(prefix))
    return f"there is no {group} '{option}'; {similar}{' ' * bool(similar)}options: {', '.join(options)}{hint}"


def _groups() -> list[str]:
    """The groups of conf/, such as experiment, that may be no keys of the configuration."""
    return sorted(folder.name for folder in config_folder().iterdir() if folder.is_dir())


def _default_keys() -> list[str]:
    """All keys of conf/train.yaml and of the groups that it chooses."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return list(_keys(compose("train")))


def _keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in map(str, config):
        name = f"{prefix}{key}"
        yield name
        if not OmegaConf.is_missing(config, key) and isinstance(node := config._get_node(key), DictConfig):
            yield from _keys(node, f"{name}.")
