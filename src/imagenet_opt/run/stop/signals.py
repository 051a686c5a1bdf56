"""What asks a run to stop, and the moment at which it does.

One `stop` for the whole process, as signal handlers are.
"""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

from imagenet_opt.errors import Preempted

SPOT = 100
"""Number of a spot notice, among signal numbers."""
STOPPED_NOW = 130
"""Exit status after a second Ctrl-C, as shells have it for SIGINT."""
REASONS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGUSR1: "SIGUSR1",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
    SPOT: "spot notice",
}
_SAME_PRESS_SECONDS = 0.5
"""`timeout -s INT`, for one, sends the signal twice: to the process and to its group."""


class Stop:
    """Takes SIGTERM, SIGHUP, SIGUSR1, Ctrl-C: the first one asks for a stop, a second Ctrl-C ends the process at once.

    at_once: nothing is lost, or half done, when the process stops wherever it is: before the first step, and while
    it waits for data. Then the signal raises Preempted; else it is left to `check`, between two batches.
    over: the run has ended; what asks now is late, and the process finishes.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._depth = 0
        self._reset()

    def __reduce__(self) -> str:
        """By its name: another process has one of its own."""
        return "stop"

    def _reset(self) -> None:
        self.at_once, self.over = True, False
        self.why, self.asked_at = 0, 0.0
        self._pressed_at: float | None = None
        self._pid = os.getpid()
        self.forking = False  # what is raised then is lost, and may leave a lock that others wait for

    @property
    def reason(self) -> str:
        return REASONS.get(self.why, "")

    def install(self) -> None:
        """Take over the signals; `restore`, called as often, gives them back. In a thread: nothing can be taken."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._depth += 1
        if self._depth == 1:
            self._reset()
            signals = [number for number in REASONS if number != SPOT]
            if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
                signals.remove(signal.SIGHUP)  # by nohup
            self._before = {number: signal.signal(number, self._receive) for number in signals}

    def restore(self) -> None:
        if threading.current_thread() is not threading.main_thread() or not self._depth:
            return
        self._depth -= 1
        if self._depth == 0:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._reset()

    def ask(self, why: int) -> None:
        """Ask for a stop from any thread."""
        self._note(why)
        if self._depth:
            os.kill(os.getpid(), signal.SIGTERM)  # the main thread alone can leave what it waits in

    def check(self) -> None:
        """Raises Preempted when a stop was asked for."""
        if self.why:
            self.at_once = False
            raise Preempted(self.reason)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return  # a loader's worker, which has the handler from the fork: the process that trains ends it
        if number == signal.SIGINT:
            self._press()
        self._note(number)
        if self.at_once and not self.over and not self.forking:
            self.check()

    def _note(self, why: int) -> None:
        if self.over and why == signal.SIGINT:
            _say("Ctrl-C: finishing; again stops now")
        if self.why or self.over:
            return
        self.why, self.asked_at = why, time.monotonic()
        again = "; again stops now" if why == signal.SIGINT else ""
        _say(f"{self.reason}: {'stopping' if self.at_once else 'saving and stopping after this step'}{again}")

    def _press(self) -> None:
        now = time.monotonic()
        if self._pressed_at is None:
            self._pressed_at = now
        elif now - self._pressed_at > _SAME_PRESS_SECONDS:
            _say("Ctrl-C: stopped now; the same command resumes from the last checkpoint")
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(STOPPED_NOW)


def _say(text: str) -> None:
    """Past sys.stderr, whose buffer the signal may have interrupted; one process speaks for all of a machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with suppress(OSError):  # of a terminal that is gone
            os.write(2, f"{text}\n".encode())


stop = Stop()


def _fork(begins: bool) -> None:
    stop.forking = begins


os.register_at_fork(before=partial(_fork, True), after_in_parent=partial(_fork, False))
