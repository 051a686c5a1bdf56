"""A deadline for measurements, and the errors that end one measurement without ending the others."""

import time
from collections.abc import Callable


class OutOfTime(Exception):
    """The time left is too short for the next measurement; earlier measurements count."""


class Deadline:
    """A deadline `seconds` from now."""

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
        """Raises OutOfTime if less than `needed` seconds are left of `share`."""
        if self.left(share) < needed:
            raise OutOfTime


class TurnFailed(Exception):
    """A turn failed, with the reason; the turns of other names continue."""
