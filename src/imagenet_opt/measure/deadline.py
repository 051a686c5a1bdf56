"""A span of time that several measurements share."""

import time
from collections.abc import Callable


class OutOfTime(Exception):
    """There is no time left for what is asked; what has been measured counts."""


class Deadline:
    """`seconds` from now on."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._began = clock()

    @property
    def passed(self) -> float:
        return self._clock() - self._began

    def left(self, share: float = 1.0) -> float:
        """Seconds until `share` of the time is over, at least 0."""
        return max(0.0, share * self.seconds - self.passed)

    def check(self, needed: float, share: float = 1.0) -> None:
        """Raises OutOfTime where less than `needed` seconds are left of that share."""
        if self.left(share) < needed:
            raise OutOfTime
