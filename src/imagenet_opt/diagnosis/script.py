"""Diagnoses an unchanged script in a process of its own, and leaves no process behind."""

import ctypes
import json
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter

from imagenet_opt.diagnosis.cause import conclude
from imagenet_opt.diagnosis.hook import command_of
from imagenet_opt.diagnosis.measurements import Measurements
from imagenet_opt.diagnosis.verdict import Diagnosis
from imagenet_opt.errors import ConfigError, TrainingError

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes whose parent has ended become children of this one; see prctl(2)
_POLL_SECONDS = 0.2
_TO_BEGIN, _TO_END = 5.0, 3.0
"""Times the seconds of the experiments in which the loop must begin, and the experiments must end."""
_LEAST_WAIT = 60.0
_MEASUREMENTS = TypeAdapter(Measurements)


def diagnose_script(script: Path, arguments: list[str], *, seconds: float) -> Diagnosis:
    """Run a script with its first training loop over a DataLoader as the harness of the experiments; then end it.

    What the script prints goes to stderr. Raises ConfigError if no training loop over a DataLoader began, TrainingError
    if the script failed or was killed before the loop could be judged.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with tempfile.TemporaryDirectory(prefix="imagenet_opt_diagnose_") as folder:
        file = Path(folder) / "state.json"
        command = command_of(file, seconds, [str(script), *arguments])
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
        try:
            reason = _wait(process, file, seconds)
        finally:
            _end_all(before)
            process.wait()
            ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0)  # later orphans of this process would never be reaped
        state = _state(file)
    if state.get("measured") is None:
        loops = state.get("num_loops", 0)
        seen = f"{loops} loops over a DataLoader, none that trains" if loops else "no loop over a DataLoader"
        raise (TrainingError if "raised" in reason or "killed" in reason else ConfigError)(
            f"{script}: {reason}; seen until then: {seen}. Expected a training loop over torch.utils.data.DataLoader; "
            "imagenet_opt.diagnose(loader, step) takes any other loop"
        )
    return conclude(_MEASUREMENTS.validate_python(state["measured"]), reason, TrainingError, f"{script}: ")


def _wait(process: "subprocess.Popen[bytes]", file: Path, seconds: float) -> str:
    """Wait for the result. Returns why there is no complete one; "" if there is."""
    claimed, since, limit = file.with_suffix(".claim"), time.monotonic(), max(_LEAST_WAIT, _TO_BEGIN * seconds)
    is_examined = False
    while True:
        state = _state(file)
        if state.get("state") == "done":
            return str(state["reason"])
        if claimed.exists() and not is_examined:
            is_examined, since, limit = True, time.monotonic(), max(_LEAST_WAIT, _TO_END * seconds)
        if time.monotonic() - since > limit:
            began = "no training loop over a DataLoader began"
            if is_examined:
                began = "a step or a batch is slow or hangs: the experiments did not end"
            return f"{began} within {limit:.0f} s (raise --seconds)"
        if process.poll() is not None and not psutil.pid_exists(state.get("pid", process.pid)):
            status = process.returncode
            how = f"ended with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"
            return f"the script {how}"
        time.sleep(_POLL_SECONDS)


def _state(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return dict(json.loads(file.read_text()))
    return {}


def _end_all(before: set[int]) -> None:
    """Kill all processes that the script has started, also those that left its group."""
    while alive := [each for each in psutil.Process().children(recursive=True) if each.pid not in before]:
        for process in alive:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=5)
