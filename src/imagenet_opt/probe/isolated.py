"""A function called in a process of its own, so that nothing of one measurement reaches another."""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from imagenet_opt import errors
from imagenet_opt.errors import ImagenetOptError, last_error_line
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.measuring import end_like_an_error

LIMIT_SECONDS = 1800
"""A call that takes longer has hung."""
_ALLOWANCE = 10
"""Times what is timed in it, which such a call may take on top."""
_CLEAN_UP_SECONDS = 3
_JOB, _ANSWER, _LOG = "job.pickle", "answer.json", "log.txt"


def limit(timed_seconds: float) -> float:
    """Seconds after which a call has hung in which so many are timed."""
    return LIMIT_SECONDS + _ALLOWANCE * timed_seconds


class Hung(TurnFailed):
    """The call had not ended within its limit."""


def call_apart(
    function: str, job: Any, *, limit_seconds: float = LIMIT_SECONDS, environment: Mapping[str, str] | None = None
) -> Any:
    """What `function` ("package.module.name") gives for `job`, as JSON has it, and the end of all that it started.

    environment: variables that the process has beside this one's; the working folder is the same. Processes that
    `function` starts with its own command line, as Lightning does for DDP, call it too (LOCAL_RANK tells them apart);
    the first one's answer counts, and the first error of any.

    Raises ImagenetOptError as the process raised it, Hung after limit_seconds, and TurnFailed with the reason where it
    died otherwise.
    """
    with tempfile.TemporaryDirectory(prefix="imagenet_opt_apart_") as scratch:
        folder = Path(scratch)
        (folder / _JOB).write_bytes(pickle.dumps(job))
        code = _run([sys.executable, "-m", __name__, scratch, function], folder, limit_seconds, environment or {})
        if not (folder / _ANSWER).exists():
            raise TurnFailed(_why(code, (folder / _LOG).read_text(errors="replace")))
        given = json.loads((folder / _ANSWER).read_text())
    if "error" in given:
        raise getattr(errors, given["error"], TurnFailed)(given["message"])
    return given["answer"]


def _run(command: list[str], folder: Path, limit_seconds: float, environment: Mapping[str, str]) -> int:
    own = {"OMP_WAIT_POLICY": "PASSIVE", "PYNVIMGCODEC_VERBOSITY": "0", "PYTHONSAFEPATH": "1"}
    if "SLURM_JOB_ID" in os.environ:
        own["SLURM_JOB_NAME"] = "interactive"  # or Lightning waits for processes of srun
    with (folder / _LOG).open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **own, **environment},
            start_new_session=True,
        )
        try:
            return process.wait(limit_seconds)
        except subprocess.TimeoutExpired as error:
            raise Hung(f"no end after {limit_seconds:g} s") from error
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """With all that it started; given a moment to clean up where it still runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_CLEAN_UP_SECONDS)


def _why(code: int, output: str) -> str:
    """The last error that the process printed, or how it ended."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    end = f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
    return last_error_line(output) or ": ".join([end, *lines[-1:]])


def main() -> None:
    """In the process of its own: the job and the answer are files of the folder that is named first."""
    folder, function = Path(sys.argv[1]), sys.argv[2]
    job = pickle.loads((folder / _JOB).read_bytes())
    end_like_an_error()
    threading.excepthook = _end_with  # what has lost a thread may wait for it for ever
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    given: dict[str, Any]
    try:
        given = {"answer": resolve_name(function)(job)}
    except (ImagenetOptError, TurnFailed) as error:
        given = {"error": type(error).__name__, "message": str(error)}
    if os.environ.get("LOCAL_RANK", "0") == "0" or "error" in given:
        _write(given, folder)
    sys.stdout.flush()
    # Lightning ends the others when one fails; taking loaders down is no part of a measurement, and some hang in it
    os._exit("error" in given)


def _write(given: dict[str, Any], folder: Path) -> None:
    """Whole or not at all; what another process of this call has written stays."""
    written = folder / f"{_ANSWER}.{os.getpid()}"
    written.write_text(json.dumps(given))
    if not (folder / _ANSWER).exists():
        written.rename(folder / _ANSWER)


def _end_with(died: threading.ExceptHookArgs) -> None:
    sys.excepthook(died.exc_type, died.exc_value or died.exc_type(), died.exc_traceback)
    os._exit(1)


def _end_with_parent(parent: int) -> None:
    """Without the one that asked, nobody would end a process that hangs."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
