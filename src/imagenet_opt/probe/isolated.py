"""Calls functions in processes of their own, so that measurements cannot influence each other."""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
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
IN_TURNS = "in-turns"
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


@contextmanager
def in_turns(
    function: str,
    job: Any,
    *,
    stops: bool,
    limit_seconds: float = LIMIT_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> Iterator["InTurns"]:
    """Call `function` as `call_isolated` does, in turns.

    stops: whether its processes are stopped between the turns, except those with a process group of their own. The
    function takes the job and a function `pause`. It calls `pause` with a report, JSON values, at the end of each turn.
    In the next turn `pause` returns True, or False if the function must return now.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs, _started(function, job, environment or {}, stdin=theirs.fileno(), words=(IN_TURNS,)) as call:
        theirs.close()
        yield InTurns(call, Connection(ours.detach()), limit_seconds, stops=stops)


class InTurns:
    """A call whose function works in turns; see `in_turns`. If it does not stop, its next turn begins at once."""

    def __init__(
        self, call: "_Call", connection: "Connection[bool, Any]", limit_seconds: float, *, stops: bool
    ) -> None:
        self._call, self._connection, self._limit_seconds, self._stops = call, connection, limit_seconds, stops
        self._waits = False

    def turn(self) -> Any:
        """Let the function work until its next report, and return the report; None if the function has returned
        instead. Raises as `call_isolated`."""
        end = time.monotonic() + self._limit_seconds
        try:
            self._go_on(True)
            while not self._connection.poll(_POLL_SECONDS):
                if self._call.process.poll() is not None:
                    self._call.answer(0.0)
                    return None
                if time.monotonic() > end:
                    raise self._call.hung(self._limit_seconds)
            report = self._connection.recv()
            self._waits = True
            if self._stops:
                os.killpg(self._call.process.pid, signal.SIGSTOP)
            else:
                self._go_on(True)
        except (OSError, EOFError):  # the process has ended
            self._call.answer(_CLEAN_UP_SECONDS)
            return None
        return report

    def end(self) -> Any:
        """Let the function return, and return its result. Raises as `call_isolated`."""
        with suppress(OSError):  # the process has ended
            self._waits = True
            self._go_on(False)
        return self._call.answer(self._limit_seconds)

    def _go_on(self, word: bool) -> None:
        if self._waits:
            if self._stops:
                os.killpg(self._call.process.pid, signal.SIGCONT)
            self._connection.send(word)
            self._waits = False


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
            raise self.hung(limit_seconds) from error
        if not (self.folder / ANSWER).exists():
            raise TurnFailed(_why(code, (self.folder / _LOG).read_text(errors="replace")))
        result = json.loads((self.folder / ANSWER).read_text())
        if "error" in result:
            raise getattr(errors, result["error"], TurnFailed)(result["message"])
        return result["answer"]

    def hung(self, limit_seconds: float) -> Hung:
        return Hung(f"not finished after {limit_seconds:g} s")


@contextmanager
def _started(
    function: str, job: Any, environment: Mapping[str, str], *, stdin: int | None = None, words: tuple[str, ...] = ()
) -> Iterator[_Call]:
    """Start the process; on exit, end all its processes. stdin: None for no input. words: further arguments."""
    settings = {"OMP_WAIT_POLICY": "PASSIVE", "PYNVIMGCODEC_VERBOSITY": "0", "PYTHONSAFEPATH": "1"}
    if "SLURM_JOB_ID" in os.environ:
        settings["SLURM_JOB_NAME"] = "interactive"  # else Lightning waits for processes of srun
    env = {**os.environ, **settings, **environment}
    with tempfile.TemporaryDirectory(prefix="imagenet_opt_apart_") as scratch:
        folder = Path(scratch)
        (folder / JOB).write_bytes(pickle.dumps(job))
        arguments = ["-m", _PROCESS, scratch, function, *words]
        with (folder / _LOG).open("wb") as log, open(os.devnull, "rb") as null:
            output, no_input = log.fileno(), null.fileno()
            files = {"stdin": no_input if stdin is None else stdin, "stdout": output, "stderr": output}
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
            os.killpg(process.pid, signal.SIGCONT)
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
