"""What asks a sweep to stop is noted, and asked of the job that runs, which may not have heard of it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from types import FrameType


class Handover:
    """Takes SIGTERM and SIGUSR1 from the first job to the end of the process, between two jobs as well.

    why: the first of them that came; 0 for none.
    """

    def __init__(self) -> None:
        self.why = 0
        self._job: Popen[bytes] | None = None

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, self._receive)

    @contextmanager
    def to(self, job: "Popen[bytes]") -> Iterator[None]:
        """While `job` runs; it gets what came since it was begun, too."""
        self._job = job
        if self.why:
            job.send_signal(self.why)
        try:
            yield
        finally:
            self._job = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.why = self.why or number
        if self._job is not None:
            self._job.send_signal(number)
