"""Improves one setting after the other, until the rate is sufficient or nothing improves it."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from imagenet_opt.compare.gain import gain_of
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table
from imagenet_opt.measure.stats.rounds import OutOfTime, TurnFailed
from imagenet_opt.measure.stats.verdict import UNDECIDED

Setting = dict[str, Any]
"""Values of configuration keys that differ from the configuration."""
Axis = Callable[[Setting], Iterable[Setting]]
"""Settings to try, given the best setting; an axis ends at the first setting without gain."""
ROUNDS = 4
"""Rounds of a candidate and the best setting so far. The first turn of the candidate does not count, because a lucky
first turn makes a candidate. Simulated with up to eight candidates that are all equal: at most one search in twenty
names a faster setting."""
LEAST_GAIN = 1.03
"""Least gain of a candidate in its first turn; with less gain the candidate gets no further turns."""
START, NO_GAIN = "as it was", f"not {100 * (LEAST_GAIN - 1):.0f} % faster in one turn"
UNTRIED, OPEN = "not tried: budget", f"{UNDECIDED}: budget"


def words(setting: Setting) -> list[str]:
    """The setting as overrides of train.py."""
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in setting.items()]


def text(setting: Setting) -> str:
    """The setting for a table, with the last part of each key."""
    return " ".join(re.sub(r"^[^=]*\.", "", word) for word in words(setting)) or "as configured"


@dataclass
class Climb:
    """best: the chosen setting. rates: images per second of each turn, by the text of the setting. outcomes: words by
    the text of the setting, also of settings without a turn. is_enough: whether it ended at the sufficient rate."""

    start: Setting
    best: Setting
    rates: dict[str, list[float]] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    is_enough: bool = False

    @property
    def rate(self) -> float:
        """Median of the best setting."""
        return median(self.rates[text(self.best)])

    @property
    def changes(self) -> Setting:
        """What the best setting changes."""
        return {key: value for key, value in self.best.items() if self.start.get(key) != value}

    @property
    def lacks_time(self) -> bool:
        return any(outcome in (UNTRIED, OPEN) for outcome in self.outcomes.values())

    @property
    def undecided(self) -> list[str]:
        """Settings that had all their rounds and are undecided."""
        return [name for name, word in self.outcomes.items() if word.startswith(UNDECIDED) and word != OPEN]

    def table(self, title: str, *notes: str) -> Table:
        """A row and a bar for each setting. The range of a row is the minimum and maximum of several turns."""
        columns = [Column("setting"), *(Column(heading, "{:,.1f}") for heading in ("images/s", "from", "to"))]
        columns += [Column("times", "{:.2f}"), Column("turns", "{:.0f}"), Column("verdict")]
        rows = tuple((name, *self._cells(name), outcome) for name, outcome in self.outcomes.items())
        bars = [(median(rates), min(rates), max(rates)) for rates in self.rates.values()]
        series = Series("", tuple(self.rates), *zip(*bars, strict=True))
        plot = Plot("Images per second, median and range", "", "images/s", "bars", (series,))
        return Table(title, tuple(columns), rows, notes, (plot,))

    def _cells(self, name: str) -> tuple[Cell, ...]:
        if not (rates := self.rates.get(name)):
            return None, None, None, None, 0.0
        low, high = (min(rates), max(rates)) if len(rates) > 1 else (None, None)
        return median(rates), low, high, median(rates) / median(self.rates[text(self.start)]), float(len(rates))


def each(settings: Iterable[Setting]) -> list[Axis]:
    """An axis for each setting, so that all are tried."""
    return [lambda best, one=setting: [one] for setting in settings]  # type: ignore[misc]


def climb(
    start: Setting, axes: Sequence[Axis], turn: Callable[[Setting], float], *, enough: float | None = None
) -> Climb:
    """Improve along each axis, starting with the likely best setting.

    turn: images per second of a setting; may raise TurnFailed and OutOfTime. enough: the rate at which the search ends,
    or None. A setting is kept if it is 3 % faster in its first turn and then has the verdict "faster" in ROUNDS rounds
    with the best so far. Raises TurnFailed or OutOfTime if the start cannot be measured.
    """
    climbed = Climb(start, start, {text(start): [turn(start)]}, {text(start): START})
    for axis in axes:
        for setting in axis(climbed.best):
            if enough is not None and climbed.rate >= enough:
                climbed.is_enough = True
                return climbed
            if text(setting) not in climbed.outcomes and not (climbed.lacks_time or _improves(climbed, setting, turn)):
                break
            climbed.outcomes.setdefault(text(setting), UNTRIED)
    return climbed


def _improves(climbed: Climb, setting: Setting, turn: Callable[[Setting], float]) -> bool:
    """Compare a setting with the best so far, and keep it if it is faster. Returns whether the axis may go on."""
    best, name = text(climbed.best), text(setting)
    settings = {best: climbed.best, name: setting}

    def take(of: str, number: int = 0) -> float:
        rate = turn(settings[of])
        climbed.rates.setdefault(of, []).append(rate)
        return rate

    try:
        if take(name) < LEAST_GAIN * climbed.rate:
            climbed.outcomes[name] = NO_GAIN
            return False
        climbed.outcomes[name] = OPEN
        rounds: Rounds[float] = Rounds({best: [], name: []})
        rounds.run(take, (number for number in range(ROUNDS) if not rounds.failures))
    except TurnFailed as error:
        climbed.outcomes[name] = str(error)
        return False
    except OutOfTime:
        climbed.outcomes.setdefault(name, UNTRIED)
        return True
    if rounds.failures:
        climbed.outcomes[name] = rounds.failures.get(name, f"{UNDECIDED}: {best} failed")
        return False
    gain = gain_of(rounds, name, best)
    climbed.outcomes[name] = gain.verdict_in_words
    if gain.verdict == "faster":
        climbed.best = setting
    return gain.verdict == "faster"
