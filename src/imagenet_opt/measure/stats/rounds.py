"""Interleaved measurements, so that a changing load of the machine affects all candidates alike."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar


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


T = TypeVar("T")


class TurnFailed(Exception):
    """A turn failed, with the reason; the turns of other names continue."""


@dataclass
class Rounds(Generic[T]):
    """results: by name, one per round until the name failed. failures: reason by name. seconds: time of all rounds."""

    results: dict[str, list[T]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)

    @property
    def reasons(self) -> tuple[str, ...]:
        """A line for each failure."""
        return tuple(f"{name}: {why}" for name, why in self.failures.items())


def interleave(
    turns: Mapping[str, Callable[[], T]],
    *,
    repeats: int,
    before_turn: Callable[[int, str, int], None] = lambda number, name, done: None,
) -> Rounds[T]:
    """Run every turn once per round, in `repeats` rounds, each starting with another name.

    A name whose turn raises TurnFailed is not run again. before_turn: called with the number of the round, the name,
    and the number of finished turns.
    """
    rounds: Rounds[T] = Rounds({name: [] for name in turns})
    names, began = list(turns), time.monotonic()
    for number in range(repeats):
        first = number % max(1, len(names))
        for place, name in enumerate(names[first:] + names[:first]):
            if name in rounds.failures:
                continue
            before_turn(number, name, number * len(names) + place)
            try:
                rounds.results[name].append(turns[name]())
            except TurnFailed as error:
                rounds.failures[name] = str(error)
    rounds.seconds = time.monotonic() - began
    return rounds
