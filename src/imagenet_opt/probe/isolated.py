"""Calls functions in processes of their own, so that measurements cannot influence each other."""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_opt import errors, fork_server
from imagenet_opt.errors import last_error_line
from imagenet_opt.measure.stats.rounds import TurnFailed

LIMIT_SECONDS = 1800
"""A call that takes longer counts as hung."""
_ALLOWANCE = 10
"""A call may take LIMIT_SECONDS, and in addition this many times its measuring time."""
_CLEAN_UP_SECONDS = 3
_POLL_SECONDS = 0.5
JOB, ANSWER, _LOG = "job.pickle", "answer.json", "log.txt"
_PROCESS = "imagenet_opt.probe.isolated_process"


def limit(timed_seconds: float) -> float:
    """Time limit in seconds for a call that measures for this many seconds."""
    return LIMIT_SECONDS + _ALLOWANCE * timed_seconds


class Hung(TurnFailed):
    """The call did not end within its time limit."""


def call_isolated(
    function: str, job: Any, *, limit_seconds: float = LIMIT_SECONDS, environment: Mapping[str, str] | None = None
) -> Any:
    """Call `function` ("package.module.name") with `job` in a new process, and return its result as JSON values.

    environment: additional variables of the process, which has the caller's working folder. Processes that `function`
    starts with the process's command line, as Lightning does for DDP, call `function` too (LOCAL_RANK distinguishes
    them). The call returns the result of the first process, or raises the first error of any process. All processes are
    ended before the return.

    Raises the ImagenetOptError of the process, Hung after limit_seconds, and TurnFailed with the reason if the process
    died otherwise.
    """
    with _started(function, job, environment or {}) as call:
        return call.answer(limit_seconds)


@dataclass
class _Call:
    """A process, and the folder of its answer."""

    process: fork_server.Program
    folder: Path

    def answer(self, limit_seconds: float) -> Any:
        """Wait for the end of the process; see `call_isolated`."""
        try:
            code = self.process.wait(limit_seconds)
        except subprocess.TimeoutExpired as error:
            raise Hung(f"not finished after {limit_seconds:g} s") from error
        if not (self.folder / ANSWER).exists():
            raise TurnFailed(_why(code, (self.folder / _LOG).read_text(errors="replace")))
        result = json.loads((self.folder / ANSWER).read_text())
        if "error" in result:
            raise getattr(errors, result["error"], TurnFailed)(result["message"])
        return result["answer"]


@contextmanager
def _started(function: str, job: Any, environment: Mapping[str, str]) -> Iterator[_Call]:
    """Start the process; on exit, end all its processes."""
    settings = {"OMP_WAIT_POLICY": "PASSIVE", "PYNVIMGCODEC_VERBOSITY": "0", "PYTHONSAFEPATH": "1"}
    if "SLURM_JOB_ID" in os.environ:
        settings["SLURM_JOB_NAME"] = "interactive"  # else Lightning waits for processes of srun
    env = {**os.environ, **settings, **environment}
    with tempfile.TemporaryDirectory(prefix="imagenet_opt_apart_") as scratch:
        folder = Path(scratch)
        (folder / JOB).write_bytes(pickle.dumps(job))
        arguments = ["-m", _PROCESS, scratch, function]
        with (folder / _LOG).open("wb") as log, open(os.devnull, "rb") as null:
            files = {"stdin": null.fileno(), "stdout": log.fileno(), "stderr": log.fileno()}
            process = fork_server.start(arguments, env=env, new_session=True, **files)
        try:
            yield _Call(process, folder)
        finally:
            _end(process)


def _end(process: fork_server.Program) -> None:
    """End a process and all processes that it started, with a moment to clean up."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_CLEAN_UP_SECONDS)


def _why(code: int, output: str) -> str:
    """The last error that the process printed; without an error, how the process ended."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    end = f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
    return last_error_line(output) or ": ".join([end, *lines[-1:]])


def begin_measuring() -> None:
    """Let idle threads wait without spinning, as in train.py, since spinning would slow down the loader's workers;
    and let SIGTERM end the process like an error, so that clean-up runs."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    end_like_an_error()


def end_like_an_error() -> None:
    """Let SIGTERM raise SystemExit with the shell's status for that signal."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
