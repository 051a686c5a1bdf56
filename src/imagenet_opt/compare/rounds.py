"""Measures several setups in rounds, so that a changing load of the machine affects all of them alike."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from imagenet_opt.display.progress import duration, roughly, say
from imagenet_opt.measure.stats.rounds import Deadline, TurnFailed

T = TypeVar("T")
LEAST_ROUNDS = 4
"""Simulated with 20 rows that scatter by 1 %: a gain of 10 % is found in 2 % of the studies after two rounds, in 17 %
after three, and in 75 % after four."""


@dataclass
class Rounds(Generic[T]):
    """results: by name, one per round until the name failed. failures: reason by name. seconds: time of all rounds."""

    results: dict[str, list[T]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)

    @property
    def complete(self) -> dict[str, list[T]]:
        """The results of the names that never failed."""
        return {name: results for name, results in self.results.items() if name not in self.failures}

    @property
    def reasons(self) -> tuple[str, ...]:
        """A line for each failure."""
        return tuple(f"{name}: {why}" for name, why in self.failures.items())

    def run(
        self,
        measure: Callable[[str, int], T],
        numbers: Iterable[int],
        failed: Callable[[str, int, str], None] = lambda name, number, reason: None,
    ) -> None:
        """Call `measure` with each name and the number of the round (from 0), each round in another order of the names.

        A name whose measurement raises TurnFailed has no further rounds, and `failed` is called with the name, the
        round and the reason.
        """
        began = time.monotonic()
        for number in numbers:
            for name in in_order(self.results, number):
                if name in self.failures:
                    continue
                try:
                    self.results[name].append(measure(name, number))
                except TurnFailed as error:
                    self.failures[name] = str(error)
                    failed(name, number, str(error))
            self.seconds = time.monotonic() - began


def in_rounds(names: Iterable[str], measure: Callable[[str, int], T], numbers: Iterable[int]) -> Rounds[T]:
    """Rounds of these names, see `Rounds.run`."""
    rounds: Rounds[T] = Rounds({name: [] for name in names})
    rounds.run(measure, numbers)
    return rounds


def in_order(names: Iterable[str], number: int) -> list[str]:
    """The names in their order of round `number`: random, and reversed in every other round, because a speed may depend
    by some percent on what ran before. The first round has the given order."""
    shuffled = list(names)
    if number > 1:
        random.Random(number // 2).shuffle(shuffled)
    return shuffled[::-1] if number % 2 else shuffled


def while_time_is_left(
    deadline: Deadline, round_seconds: Callable[[], float], is_stored: Callable[[int], bool] = lambda number: False
) -> Iterator[int]:
    """Yield the numbers of LEAST_ROUNDS rounds, then of as many as the time left is enough for.

    round_seconds: how long a round takes, by those before it. is_stored: whether the results of a round are known, so
    that it takes no time. A line on stderr says why there is no further round.
    """
    for number in count():
        if number >= LEAST_ROUNDS and not is_stored(number):
            seconds, left = round_seconds(), deadline.left()
            if seconds > left:
                if deadline.seconds:
                    say(f"no further round: it takes {roughly(seconds)}, and {duration(left)} of --budget are left")
                return
        yield number
