"""Improves one setting after the other, until the rate is sufficient or nothing improves it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, TypeVar

from imagenet_opt.display.table import verdict_in_words
from imagenet_opt.measure.stats.paired_ratios import UNDECIDED, Ratio, more_rounds, pair_ratio, verdict
from imagenet_opt.measure.stats.rounds import OutOfTime, TurnFailed

T = TypeVar("T")
TURNS = 4
"""Turns of a candidate and of the best setting so far before the choice. The first turn of the candidate does not
count, because a lucky first turn makes a candidate. Simulated with up to eight candidates that are all equal: at most
one search in twenty names a faster setting."""
UNTRIED = "not tried: budget"
"""The outcome of a setting that had no turn."""
LEAST_GAIN = 1.03
"""Least gain of a candidate in its first turn; with less gain the candidate gets no further turns."""


@dataclass
class CoordinateSearch(Generic[T]):
    """turns: images per second of each turn, by setting, in the order tried. best: the chosen setting. why: the
    reason for the end. ratios: by setting with TURNS turns, its ratio to the best setting of that time. turn_seconds:
    how long each turn took, with what is not timed in it."""

    best: T
    turns: dict[T, list[float]] = field(default_factory=dict)
    failures: dict[T, str] = field(default_factory=dict)
    ratios: dict[T, Ratio] = field(default_factory=dict)
    turn_seconds: list[float] = field(default_factory=list)
    why: str = ""

    def rate(self, setting: T) -> float:
        return median(self.turns[setting])

    def outcome(self, setting: T) -> str:
        """The outcome of a setting, in words for a table."""
        if (why := self.failures.get(setting)) is not None:
            return f"kept, though once: {why}" if setting == self.best else why
        if setting not in self.turns:
            return UNTRIED
        if setting == next(iter(self.turns)):
            return "as it was"
        if setting == self.best:
            return "faster"
        if (ratio := self.ratios.get(setting)) is not None:
            return "faster, surpassed" if verdict(ratio) == "faster" else self._in_words(ratio)
        is_open = self.rate(setting) >= LEAST_GAIN * self.rate(self.best)
        undecided = f"{UNDECIDED}: budget" if self.why == "budget" else UNDECIDED
        return undecided if is_open else f"not {100 * (LEAST_GAIN - 1):.0f} % faster in one turn"

    def _in_words(self, ratio: Ratio) -> str:
        """The verdict; for an undecided one, the time of the further turns that will probably decide it. They take a
        study, since a search has no more turns."""
        words = verdict_in_words(ratio, 2 * median(self.turn_seconds) * more_rounds(ratio))
        return f"{words} in a study" if verdict(ratio) == UNDECIDED else words


def climb(
    start: T, axes: Sequence[Callable[[T], Sequence[T]]], turn: Callable[[T], float], *, enough: float | None
) -> CoordinateSearch[T]:
    """Improve along each axis, starting with the likely best setting; an axis ends at the first setting without gain.

    axes: settings to try, given a setting. turn: images per second of a setting; may raise TurnFailed and OutOfTime.
    enough: the rate at which the search ends, or None. A setting is kept if it is 3 % faster in its first turn and then
    has the verdict "faster" in TURNS further turns against the best so far.
    """
    climbed: CoordinateSearch[T] = CoordinateSearch(start)

    def is_enough() -> bool:
        return enough is not None and climbed.rate(climbed.best) >= enough

    try:
        _turn(climbed, start, turn)
        for candidates in axes:
            for setting in candidates(climbed.best):
                if is_enough():
                    break
                is_new = setting not in climbed.turns and setting not in climbed.failures
                if is_new and not _try(climbed, setting, turn):
                    break
        climbed.why = "enough" if is_enough() else "nothing more"
    except OutOfTime:
        climbed.why = "budget"
    return climbed


def _try(climbed: CoordinateSearch[T], setting: T, turn: Callable[[T], float]) -> bool:
    """Whether `setting` is now the best."""
    before, measured = climbed.best, setting
    try:
        _turn(climbed, setting, turn)
        if climbed.rate(setting) < LEAST_GAIN * climbed.rate(before):
            return False
        for number in range(TURNS):
            for measured in (before, setting) if number % 2 == 0 else (setting, before):
                _turn(climbed, measured, turn)
    except TurnFailed as error:
        climbed.failures[measured] = str(error)
        return False
    ratio = pair_ratio(climbed.turns[setting][-TURNS:], climbed.turns[before][-TURNS:])
    climbed.ratios[setting] = ratio
    if verdict(ratio) == "faster":
        climbed.best = setting
    return climbed.best == setting


def _turn(climbed: CoordinateSearch[T], setting: T, turn: Callable[[T], float]) -> None:
    began = time.perf_counter()
    rate = turn(setting)
    climbed.turn_seconds.append(time.perf_counter() - began)
    climbed.turns.setdefault(setting, []).append(rate)
