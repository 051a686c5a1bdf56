"""Reports a user's mistake in one line, with the key and the remedy."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser  # no public function says which words are flags of Hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from imagenet_opt.config.hydra_errors import explain
from imagenet_opt.config.keys import unknown_flag
from imagenet_opt.config.overrides import train_program
from imagenet_opt.errors import ConfigError, ImagenetOptError, Preempted, one_line
from imagenet_opt.training.preempted import leave


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
    except SystemExit as end:  # with an error: of a callback of Hydra, which turns other exceptions into warnings
        if isinstance(end.code, ImagenetOptError):
            sys.exit(_say(f"{type(end.code).__name__}: {end.code}"))
        raise
    except (HydraException, OmegaConfBaseException) as error:
        sys.exit(_say(f"ConfigError: {explain(error, sys.argv)}"))
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
    print(one_line(message), file=sys.stderr)
    return 2


def _while_hydra_makes_the_run_folder(error: OSError) -> bool:
    calls = [(Path(frame.filename).parts[-3:], frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    inside = [name for file, name in calls if file == ("hydra", "core", "utils.py")]
    return bool(inside) and not any(file[-1] == "train.py" and name == "train" for file, name in calls)


def check_flags(arguments: list[str]) -> None:
    """Check the flags of train.py. Raises ConfigError for a flag that Hydra does not have, such as --batch-size."""
    _, others = get_args_parser().parse_known_args(arguments)
    for flag in (word for word in others if word.startswith("-")):
        raise ConfigError(f"{unknown_flag(arguments[arguments.index(flag) :])} ({train_program()} --help)")
