"""A recorder as the process that trains sees it."""

import os
import subprocess
import sys
from pathlib import Path

from imagenet_opt.measure.telemetry.shared_state import Gauges

_END_SECONDS = 5.0
_KILL_SECONDS = 1.0
_SOURCES = Path(__file__).parents[3]


class Recording:
    """Starts the recorder of this process, which writes into `folder` until `stop`.

    gauges: what the recorder is told. gpu_names: from `device_names` of measure/telemetry/gpu.py, None without a GPU.
    error: why it records no more, or could not write the rest at the end; else None. `is_lost` brings it up to date.
    Raises OSError where there is no memory or no process to be had; afterwards nothing is raised.
    """

    def __init__(self, folder: Path, gpu_names: tuple[str, str] | None) -> None:
        self.gauges = Gauges()
        self.error: str | None = None
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = self._start(str(self.gauges.file), str(os.getpid()), str(folder), *(gpu_names or ()))
        except OSError:
            self.gauges.close()
            raise

    def is_lost(self) -> bool:
        """Whether the recorder has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            self._end(self._process)
        return self.error is not None

    def stop(self) -> None:
        """Let the recorder write what it has and end; one whose disk hangs is killed, or left where that is no use."""
        self.gauges["done"] = 1
        if self._process is not None:
            self._end(self._process)
        self.gauges.close()

    def _end(self, process: "subprocess.Popen[str]") -> None:
        self._process = None
        try:
            said = _last_words(process)
        except subprocess.TimeoutExpired:
            self.error = "its disk hangs: it could not even be killed"
            return
        if process.returncode or not self.gauges["done"]:
            self.error = next(reversed(said.splitlines()), f"ended with status {process.returncode}")

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
            start_new_session=True,
        )


def _last_words(process: "subprocess.Popen[str]") -> str:
    """Its stderr. Raises TimeoutExpired for one that the kernel does not let die, as on a network disk that hangs."""
    try:
        return process.communicate(timeout=_END_SECONDS)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate(timeout=_KILL_SECONDS)[1]
