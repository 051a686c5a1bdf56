"""What a process that measures sets up, before anything heavy is imported."""

import os
import signal
import sys


def begin_measuring() -> None:
    """Threads wait without spinning, as in train.py, where they would starve the loader's workers; and SIGTERM ends the
    process like an error does, so that nothing is left behind."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    end_like_an_error()


def end_like_an_error() -> None:
    """At SIGTERM, with the shell's status for it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
