"""Starts and stops the recorder of a timeline from the training process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from imagenet_opt.blocked_signals import blocked
from imagenet_opt.measure.telemetry.shared_state import Gauges

_END_SECONDS = 5.0
_KILL_SECONDS = 1.0
_SOURCES = Path(__file__).parents[3]
BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that all processes of a job may get. The recorder does not obey them, but ends when its parent ends."""


class Recording:
    """Starts a recorder process for this process, which writes into `folder` until `stop`.

    What stops or kills all processes of this group, as Ctrl-Z does, stops or kills the recorder too.

    gauges: shared memory for values to record. gpu_names: from `device_names` of measure/telemetry/gpu.py, None without
    a GPU. error: why the recorder stopped or could not write the rest; else None; `is_lost` updates `error`.
    Raises OSError if the memory or the process cannot be created; raises nothing later.
    """

    def __init__(self, folder: Path, gpu_names: tuple[str, str] | None) -> None:
        self.gauges = Gauges()
        self.error: str | None = None
        self._process: subprocess.Popen[str] | None = None
        try:
            with blocked(*BLOCKED):  # also for the new process
                self._process = self._start(str(self.gauges.file), str(os.getpid()), str(folder), *(gpu_names or ()))
        except BaseException:  # an OSError, or an error that the handler of a signal raises after the block
            self.stop()
            raise

    def is_lost(self) -> bool:
        """Whether the recorder has ended unexpectedly."""
        if self._process is not None and self._process.poll() is not None:
            self._end(self._process)
        return self.error is not None

    def stop(self) -> None:
        """Let the recorder write its rows and end; on a hanging disk kill the recorder, or abandon it if that fails."""
        self.gauges["done"] = 1
        if self._process is not None:
            self._end(self._process)
        self.gauges.close()

    def _end(self, process: "subprocess.Popen[str]") -> None:
        self._process = None
        try:
            output = _stderr_of(process)
        except subprocess.TimeoutExpired:
            self.error = "the disk hangs, and the recorder could not be killed"
            return
        if process.returncode or not self.gauges["done"]:
            self.error = next(reversed(output.splitlines()), f"ended with status {process.returncode}")

    def _start(self, *arguments: str) -> "subprocess.Popen[str]":
        path = os.pathsep.join([str(_SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "imagenet_opt.measure.telemetry.recorder_process", *arguments],
            env=os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},  # numpy would start idle threads
            pass_fds=[self.gauges.file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )


def _stderr_of(process: "subprocess.Popen[str]") -> str:
    """End the process and return its stderr. Raises TimeoutExpired if it cannot be killed, as on a hanging disk."""
    try:
        return process.communicate(timeout=_END_SECONDS)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate(timeout=_KILL_SECONDS)[1]
