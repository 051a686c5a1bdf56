"""Requests to stop a run, and the moment at which the run stops.

A process has one `stop`, because it has one handler per signal.
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
"""Stands for a spot notice among the signal numbers."""
STOPPED_NOW = 130
"""Exit status after a second Ctrl-C: the shells' status for SIGINT."""
REASONS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGUSR1: "SIGUSR1",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
    SPOT: "spot notice",
}
_SAME_PRESS_SECONDS = 0.5
"""Signals within this time count as one Ctrl-C: `timeout -s INT` signals the process and its group."""


class StopRequest:
    """Handles SIGTERM, SIGHUP, SIGUSR1 and Ctrl-C: the first requests a stop, a second Ctrl-C ends the process at once.

    at_once: the process may stop immediately: before the first step and while it waits for data. Then the signal
    raises Preempted; otherwise `check` raises Preempted between two batches.
    over: the run has ended; a later signal is ignored, and the process finishes.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._depth = 0
        self._reset()

    def __reduce__(self) -> str:
        """Pickle by name: another process has its own `stop`."""
        return "stop"

    def _reset(self) -> None:
        self.at_once, self.over = True, False
        self.why = 0
        self._pressed_at: float | None = None
        self._pid = os.getpid()
        self.forking = False  # an exception during a fork is lost and may leave a lock held

    @property
    def reason(self) -> str:
        return REASONS.get(self.why, "")

    def install(self) -> None:
        """Install the handlers; the last matching `restore` removes them. Does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._depth += 1
        if self._depth == 1:
            self._reset()
            signals = [number for number in REASONS if number != SPOT]
            if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
                signals.remove(signal.SIGHUP)  # nohup ignores this signal
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
        """Request a stop from any thread."""
        self._note(why)
        if self._depth:
            os.kill(os.getpid(), signal.SIGTERM)  # only a signal interrupts a wait of the main thread

    def check(self) -> None:
        """Raises Preempted when a stop was requested."""
        if self.why:
            self.at_once = False
            raise Preempted(self.reason)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return  # a loader worker, which inherited the handler: the training process ends its workers
        if number == signal.SIGINT:
            self._press()
        self._note(number)
        if self.at_once and not self.over and not self.forking:
            self.check()

    def _note(self, why: int) -> None:
        if self.over and why == signal.SIGINT:
            _say("Ctrl-C: finishing; press Ctrl-C again to stop now")
        if self.why or self.over:
            return
        self.why = why
        again = "; press Ctrl-C again to stop now" if why == signal.SIGINT else ""
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
    """Print in the first process of a machine, without sys.stderr, whose buffer the signal may have interrupted."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with suppress(OSError):  # the terminal is gone
            os.write(2, f"{text}\n".encode())


stop = StopRequest()
_set_forking = partial(setattr, stop, "forking")
os.register_at_fork(before=partial(_set_forking, True), after_in_parent=partial(_set_forking, False))
