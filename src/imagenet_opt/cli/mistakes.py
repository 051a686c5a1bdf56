"""Mistakes of a user end in one line with the key and the remedy."""

import difflib
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

from imagenet_opt.config.hydra_plugins import INSTALL
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.config.removed_keys import explain_removed
from imagenet_opt.display.printable import printable
from imagenet_opt.errors import ImagenetOptError, Preempted
from imagenet_opt.training.preempted import leave

_HINTS = {
    "'model/": "for any other network of timm say model.name, such as model.name=resnet101",
    "'hydra/launcher/submitit_": f"it comes with {INSTALL}",
    "'hydra/sweeper/": f"others than basic come with {INSTALL}",
}
"""Options of groups that Hydra could not find -> what to do."""


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


def _explain(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None)
    text = " ".join(str(error).partition("Config search path")[0].split())
    if not key or "Could not override" not in text:
        return "; ".join([text, *(hint for group, hint in _HINTS.items() if f"Could not find {group}" in text)])
    if said := explain_removed(key):
        return said
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
