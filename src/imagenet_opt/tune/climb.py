"""Improves one setting after the other, until the rate is sufficient or nothing improves it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Generic, TypeVar

from imagenet_opt.compare.gain import gain_of
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table
from imagenet_opt.measure.stats.paired_ratios import UNDECIDED
from imagenet_opt.measure.stats.rounds import OutOfTime, TurnFailed

T = TypeVar("T")
ROUNDS = 4
"""Rounds of a candidate and the best setting so far. The first turn of the candidate does not count, because a lucky
first turn makes a candidate. Simulated with up to eight candidates that are all equal: at most one search in twenty
names a faster setting."""
LEAST_GAIN = 1.03
"""Least gain of a candidate in its first turn; with less gain the candidate gets no further turns."""
START, NO_GAIN = "as it was", f"not {100 * (LEAST_GAIN - 1):.0f} % faster in one turn"
UNTRIED, OPEN = "not tried: budget", f"{UNDECIDED}: budget"


@dataclass
class Climb(Generic[T]):
    """best: the chosen setting. rates: images per second of each turn, by the text of the setting, in the order tried.
    outcomes: words by the text of the setting. names: texts of all settings, also of those without a turn, if known.
    compile_seconds: by text; None if nothing could compile. why: the reason for the end: "enough", "nothing more" or
    "budget"."""

    best: T
    rates: dict[str, list[float]] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    compile_seconds: Mapping[str, float] | None = None
    why: str = ""

    @property
    def rate(self) -> float:
        """Median of the best setting."""
        return median(self.rates[str(self.best)])

    def outcome(self, name: str) -> str:
        outcome = self.outcomes.get(name, UNTRIED)
        return f"{outcome}, surpassed" if outcome == "faster" and name != str(self.best) else outcome

    def table(self, title: str, *notes: str) -> Table:
        """A row and a bar for each setting. The range of a row is the minimum and maximum of several turns."""
        columns = [Column("setting"), *(Column(heading, "{:,.1f}") for heading in ("images/s", "from", "to"))]
        columns += [Column("times", "{:.2f}"), Column("turns", "{:.0f}")]
        columns += [] if self.compile_seconds is None else [Column("compile s", "{:.0f}")]
        rows = []
        for name in dict.fromkeys((*self.outcomes, *self.names)):
            compiled = () if self.compile_seconds is None else (self.compile_seconds.get(name),)
            rows.append((name, *self._cells(name), *compiled, self.outcome(name)))
        return Table(title, (*columns, Column("verdict")), tuple(rows), notes, self._plots())

    def _cells(self, name: str) -> tuple[Cell, ...]:
        rates, base = self.rates.get(name, []), next(iter(self.rates.values()), [])
        if not rates:
            return None, None, None, None, 0.0
        low, high = (min(rates), max(rates)) if len(rates) > 1 else (None, None)
        return median(rates), low, high, median(rates) / median(base), float(len(rates))

    def _plots(self) -> tuple[Plot, ...]:
        bars = [(median(rates), min(rates), max(rates)) for rates in self.rates.values()]
        if not bars:
            return ()
        series = Series("", tuple(self.rates), *zip(*bars, strict=True))
        return (Plot("Images per second, median and range", "", "images/s", "bars", (series,)),)


@dataclass(frozen=True)
class Found:
    """Result of a part of the tuning.

    changes: overrides to keep. rate: images per second with the changes; None if not measured. notes: sentences.
    table: of what was tried; None if all of it is in climbs. climb: of the loader. lacks_time: what was not tried for
    lack of time, as a sentence; empty if nothing.
    """

    changes: tuple[str, ...] = ()
    rate: float | None = None
    notes: tuple[str, ...] = ()
    table: Table | None = None
    climb: Climb[Any] | None = None
    lacks_time: str = ""


def climb(
    start: T, axes: Iterable[Callable[[T], Sequence[T]]], turn: Callable[[T], float], *, enough: float | None = None
) -> Climb[T]:
    """Improve along each axis, starting with the likely best setting; an axis ends at the first setting without gain.

    axes: settings to try, given the best setting. turn: images per second of a setting; may raise TurnFailed and
    OutOfTime. enough: the rate at which the search ends, or None. A setting is kept if it is 3 % faster in its first
    turn and then has the verdict "faster" in ROUNDS rounds with the best so far. Raises TurnFailed if the start fails.
    """
    climbed: Climb[T] = Climb(start)

    def is_enough() -> bool:
        return enough is not None and climbed.rate >= enough

    try:
        _take(climbed, start, turn)
        climbed.outcomes[str(start)] = START
        for candidates in axes:
            for setting in candidates(climbed.best):
                if is_enough():
                    break
                if str(setting) not in climbed.outcomes and not _improves(climbed, setting, turn):
                    break
        climbed.why = "enough" if is_enough() else "nothing more"
    except OutOfTime:
        climbed.why = "budget"
    return climbed


def _take(climbed: Climb[T], setting: T, turn: Callable[[T], float]) -> float:
    rate = turn(setting)
    climbed.rates.setdefault(str(setting), []).append(rate)
    return rate


def _improves(climbed: Climb[T], setting: T, turn: Callable[[T], float]) -> bool:
    """Compare a setting with the best so far, and keep it if it is faster; return whether it is."""
    best, name = str(climbed.best), str(setting)
    settings = {best: climbed.best, name: setting}
    try:
        if _take(climbed, setting, turn) < LEAST_GAIN * climbed.rate:
            climbed.outcomes[name] = NO_GAIN
            return False
    except TurnFailed as error:
        climbed.outcomes[name] = str(error)
        return False
    climbed.outcomes[name] = OPEN
    rounds: Rounds[float] = Rounds({best: [], name: []})
    numbers = (number for number in range(ROUNDS) if not rounds.failures)
    rounds.run(lambda of, number: _take(climbed, settings[of], turn), numbers)
    if rounds.failures:
        climbed.outcomes |= {name: UNDECIDED} | rounds.failures
        if best in rounds.failures:
            climbed.outcomes[best] = f"kept, though once: {rounds.failures[best]}"
        return False
    gain = gain_of(rounds, name, best)
    climbed.outcomes[name] = gain.verdict_in_words
    if gain.verdict == "faster":
        climbed.best = setting
    return gain.verdict == "faster"
