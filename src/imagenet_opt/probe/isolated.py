"""Calls functions in processes of their own, so that measurements cannot influence each other."""

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from imagenet_opt import processes
from imagenet_opt.measure.stats.rounds import TurnFailed

LIMIT_SECONDS = 1800
"""A call that takes longer counts as hung."""
_ALLOWANCE = 10
"""A call may take LIMIT_SECONDS, and in addition this many times its measuring time."""


def limit(timed_seconds: float) -> float:
    """Time limit in seconds for a call that measures for this many seconds."""
    return LIMIT_SECONDS + _ALLOWANCE * timed_seconds


class Hung(TurnFailed):
    """The call did not end within its time limit."""


def call_isolated(
    function: str, job: Any, *, limit_seconds: float = LIMIT_SECONDS, environment: Mapping[str, str] | None = None
) -> Any:
    """Call `function` ("package.module.name") with `job` in a new process, and return its result as JSON values.

    environment: additional variables of the process. See `processes.call` for the processes of DDP.

    Raises the ImagenetOptError of the process, Hung after limit_seconds, and TurnFailed with the reason if the process
    died otherwise.
    """
    settings = {"OMP_WAIT_POLICY": "PASSIVE", "PYNVIMGCODEC_VERBOSITY": "0", "PYTHONSAFEPATH": "1"}
    if "SLURM_JOB_ID" in os.environ:
        settings["SLURM_JOB_NAME"] = "interactive"  # else Lightning waits for processes of srun
    env = {**os.environ, **settings, **(environment or {})}
    try:
        return processes.call(function, job, limit_seconds=limit_seconds, environment=env, passed_on=(TurnFailed,))
    except processes.CallHung as error:
        raise Hung(str(error)) from error
    except processes.CallFailed as error:
        raise TurnFailed(str(error)) from error


def begin_measuring() -> None:
    """Let idle threads wait without spinning, as in train.py, since spinning would slow down the loader's workers;
    and let SIGTERM end the process like an error, so that clean-up runs."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    end_like_an_error()


def end_like_an_error() -> None:
    """Let SIGTERM raise SystemExit with the shell's status for that signal."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
