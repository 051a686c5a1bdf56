"""Seconds of something that is done again and again."""

import time
from collections.abc import Callable

_LEAST_CALLS = 3


def seconds_per_call(call: Callable[[], object], *, seconds: float, settle: Callable[[], None] = lambda: None) -> float:
    """Mean over a stretch of about so many seconds, at least three calls.

    The first call, which finds algorithms and gets memory, counts for nothing; the second one tells how many fit.
    settle: waits for what a device still does.
    """
    call()
    num_calls = max(_LEAST_CALLS, round(seconds / max(timed(call, num_calls=1, settle=settle), 1e-9)))
    return timed(call, num_calls=num_calls, settle=settle)


def timed(call: Callable[[], object], *, num_calls: int, settle: Callable[[], None] = lambda: None) -> float:
    """Seconds of one of so many calls; on a GPU they are launched one after the other and waited for together."""
    settle()
    began = time.perf_counter()
    for _ in range(num_calls):
        call()
    settle()
    return (time.perf_counter() - began) / num_calls
