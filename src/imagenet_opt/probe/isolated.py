"""Calls functions in processes of their own, so that measurements cannot influence each other."""

import gc
import json
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from imagenet_opt.errors import ImagenetOptError, last_error_line
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.processes import FOR_CALLS, ServerProcess, end_with_parent, set_environment, start_server

LIMIT_SECONDS = 1800
"""A call that takes longer counts as hung."""
_ALLOWANCE = 10
"""A call may take LIMIT_SECONDS, and in addition this many times its measuring time."""
_CLEAN_UP_SECONDS = 3
_JOB, _ANSWER, _LOG = "job.pickle", "answer.json", "log.txt"


def limit(timed_seconds: float) -> float:
    """Time limit in seconds for a call that measures for this many seconds."""
    return LIMIT_SECONDS + _ALLOWANCE * timed_seconds


class Hung(TurnFailed):
    """The call did not end within its time limit."""


def call_isolated(
    function: str, job: Any, *, limit_seconds: float = LIMIT_SECONDS, environment: Mapping[str, str] | None = None
) -> Any:
    """Call `function` ("package.module.name") with `job` in a new process, and return its result as JSON values.

    environment: additional variables of the process. Processes that `function` starts with the process's command line,
    as Lightning does for DDP, call `function` too (LOCAL_RANK distinguishes them). The call returns the result of the
    first process, or raises the first error of any process. All processes are ended before the return, and if this
    process ends.

    Raises the ImagenetOptError of the process, Hung after limit_seconds, and TurnFailed with the reason if the process
    died otherwise.
    """
    settings = {"OMP_WAIT_POLICY": "PASSIVE", "PYNVIMGCODEC_VERBOSITY": "0", "PYTHONSAFEPATH": "1"}
    if "SLURM_JOB_ID" in os.environ:
        settings["SLURM_JOB_NAME"] = "interactive"  # else Lightning waits for processes of srun
    env = {**os.environ, **settings, **(environment or {})}
    with tempfile.TemporaryDirectory(prefix="imagenet_opt_apart_") as scratch:
        folder = Path(scratch)
        (folder / _JOB).write_bytes(pickle.dumps(job))
        start_server(FOR_CALLS)
        process = ServerProcess(target=_called, args=(env, scratch, function))
        process.start()
        try:
            process.join(limit_seconds)
            if process.exitcode is None:
                raise Hung(f"not finished after {limit_seconds:g} s")
            return _answer(process.exitcode, folder)
        finally:
            _end(process)


def _answer(code: int, folder: Path) -> Any:
    if not (folder / _ANSWER).exists():
        log = folder / _LOG
        raise TurnFailed(_why(code, log.read_text(errors="replace") if log.exists() else ""))
    result = json.loads((folder / _ANSWER).read_text())
    if "error" in result:
        raise resolve_name(result["error"])(result["message"])
    return result["answer"]


def _why(code: int, output: str) -> str:
    """The last error that the process printed; without an error, how the process ended."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    end = f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
    return last_error_line(output) or ": ".join([end, *lines[-1:]])


def _end(process: ServerProcess) -> None:
    """End a process and all processes that it started, with a moment to clean up."""
    assert process.pid is not None
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.join(_CLEAN_UP_SECONDS)
    if process.is_alive():
        process.kill()  # it has not yet a group of its own


def _called(env: dict[str, str], folder: str, function: str) -> None:
    """In the new process: become as `python -m imagenet_opt.probe.isolated FOLDER FUNCTION` would be."""
    import torch

    os.setsid()
    multiprocessing.set_start_method(None, force=True)  # multiprocessing passes on the caller's method
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    gc.freeze()
    set_environment(env)
    if env.get("OMP_NUM_THREADS", "").isdecimal():
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))  # the server has read its own number
    with open(os.devnull, "rb") as null, (Path(folder) / _LOG).open("wb") as log:
        for number, file in enumerate((null, log, log)):
            os.dup2(file.fileno(), number)
    sys.argv = [__file__, folder, function]
    sys.modules["__main__"] = sys.modules[__name__]
    main()


def main() -> None:
    """Read the file _JOB in the folder argv[1], call the function argv[2], and write the file _ANSWER."""
    folder, function = Path(sys.argv[1]), sys.argv[2]
    end_with_parent(whole_group=True)
    job = pickle.loads((folder / _JOB).read_bytes())
    end_like_an_error()
    threading.excepthook = _end_with  # a process that has lost a thread may wait for it for ever
    result: dict[str, Any]
    try:
        result = {"answer": resolve_name(function)(job)}
    except (ImagenetOptError, TurnFailed) as error:
        result = {"error": f"{type(error).__module__}:{type(error).__qualname__}", "message": str(error)}
    if os.environ.get("LOCAL_RANK", "0") == "0" or "error" in result:
        written = folder / f"{_ANSWER}.{os.getpid()}"
        written.write_text(json.dumps(result))
        if not (folder / _ANSWER).exists():
            written.rename(folder / _ANSWER)
    sys.stdout.flush()
    # The queues of workers that were not forked from this process have semaphores with names
    util._run_finalizers(0)  # type: ignore[attr-defined]
    # Lightning ends the other processes when one fails. Shutting loaders down may hang and is not measured, so skip it
    os._exit("error" in result)


def _end_with(died: threading.ExceptHookArgs) -> None:
    sys.excepthook(died.exc_type, died.exc_value or died.exc_type(), died.exc_traceback)
    os._exit(1)


def begin_measuring() -> None:
    """Let idle threads wait without spinning, as in train.py, since spinning would slow down the loader's workers;
    and let SIGTERM and SIGHUP end the process like an error, so that clean-up runs."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    end_like_an_error()


def end_like_an_error() -> None:
    """Let SIGTERM, and SIGHUP unless nohup ignores it, raise SystemExit with the shell's status for that signal."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, lambda number, frame: sys.exit(128 + number))


if __name__ == "__main__":
    main()
