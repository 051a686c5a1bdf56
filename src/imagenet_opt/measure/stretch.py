"""Seconds of something that is done again and again."""

import time
from collections.abc import Callable

_LEAST_CALLS = 3


def seconds_per_call(call: Callable[[], object], *, seconds: float, settle: Callable[[], None] = lambda: None) -> float:
    """Mean over a stretch of about so many seconds, at least three calls; one call before it tells how many.

    settle: waits for what a device still does.
    """
    alone = _timed(call, 1, settle)
    num_calls = max(_LEAST_CALLS, round(seconds / max(alone, 1e-9)))
    return _timed(call, num_calls, settle) / num_calls


def _timed(call: Callable[[], object], num_calls: int, settle: Callable[[], None]) -> float:
    settle()
    began = time.perf_counter()
    for _ in range(num_calls):
        call()
    settle()
    return time.perf_counter() - began
