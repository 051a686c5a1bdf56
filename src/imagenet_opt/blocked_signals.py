"""Blocks signals for a while."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def blocked(*signals: signal.Signals) -> Iterator[None]:
    """Block these signals in this thread. Processes and threads that start meanwhile inherit the block; a signal that
    arrives meanwhile acts afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # may raise, from the handler of an earlier signal
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
