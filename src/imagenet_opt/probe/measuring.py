"""Settings for a process that measures; apply them before heavy imports."""

import os
import signal
import sys


def begin_measuring() -> None:
    """Let idle threads wait without spinning, as in train.py, since spinning would slow down the loader's workers;
    and let SIGTERM end the process like an error, so that clean-up runs."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    end_like_an_error()


def end_like_an_error() -> None:
    """Let SIGTERM raise SystemExit with the shell's status for that signal."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
