"""Improves one setting after the other, until the rate is sufficient or nothing improves it."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from imagenet_opt.compare.gain import gain_of
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table
from imagenet_opt.measure.stats.rounds import Deadline, OutOfTime, TurnFailed
from imagenet_opt.measure.stats.verdict import UNDECIDED

Setting = dict[str, Any]
"""Values of configuration keys that differ from the configuration."""
Axis = Callable[[Setting], Iterable[Setting]]
"""Settings to try, given the best setting; an axis ends at the first setting that gains nothing in its one turn."""
ROUNDS, FINALISTS = 4, 2
"""Rounds of a candidate and the best setting so far, and candidates of a stage that have them. The first turn of the
candidate does not count, because a lucky first turn makes a candidate. Simulated with up to eight candidates that are
all equal: at most one search in twenty names a faster setting."""
LEAST_GAIN = 1.03
"""Least gain of a candidate in its first turn; with less gain the candidate gets no further turns."""
START, NO_GAIN = "as it was", f"not {100 * (LEAST_GAIN - 1):.0f} % faster in one turn"
UNTRIED, OPEN, BEHIND = "not tried: budget", f"{UNDECIDED}: budget", f"behind {FINALISTS} others in one turn"


def words(setting: Setting) -> list[str]:
    """The setting as overrides of train.py."""
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in setting.items()]


def text(setting: Setting) -> str:
    """The setting for a table, with the last part of each key."""
    return " ".join(re.sub(r"^[^=]*\.", "", word) for word in words(setting)) or "as configured"


@dataclass
class Climb:
    """best: the chosen setting. rates: images per second of each turn, by the text of the setting. outcomes: words by
    the text of the setting, also of settings without a turn. is_enough: whether it ended at the sufficient rate.
    seconds: of the last turn, by the text of the setting."""

    start: Setting
    best: Setting
    rates: dict[str, list[float]] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    is_enough: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

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

    @property
    def rounds_seconds(self) -> float:
        """Time of the rounds of the most promising setting and the best so far; 0 without a promising setting."""
        promising = [name for name, outcome in self.outcomes.items() if outcome == OPEN]
        name = max(promising, key=lambda name: self.rates[name][0], default=None)
        return 0.0 if name is None else ROUNDS * (self.seconds[name] + self.seconds[text(self.best)])

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
    start: Setting,
    stages: Iterable[Sequence[Axis]],
    turn: Callable[[Setting], float],
    *,
    enough: float | None = None,
    deadline: Deadline | None = None,
    share: float = 1.0,
) -> Climb:
    """Improve in one stage after the other: each setting of its axes has one turn, then the fastest two have rounds.

    turn: images per second of a setting; may raise TurnFailed and OutOfTime. enough: the rate at which the search ends,
    or None. deadline, share: when turns end; while there is a promising setting, the time of its rounds is kept, and
    further settings are not tried. A setting is kept if it is 3 % faster in its first turn and then has the verdict
    "faster" in ROUNDS rounds with the best so far. Raises TurnFailed or OutOfTime if the start cannot be measured.
    """
    climbed, deadline = Climb(start, start, outcomes={text(start): START}), deadline or Deadline(math.inf)

    def take(setting: Setting) -> float:
        began, rate = deadline.passed, turn(setting)
        climbed.seconds[text(setting)] = deadline.passed - began
        climbed.rates.setdefault(text(setting), []).append(rate)
        return rate

    def has_time() -> bool:
        needed = climbed.rounds_seconds
        return not needed or deadline.left(share) >= needed + max(climbed.seconds.values())

    take(start)
    for axes in stages:
        if enough is not None and climbed.rate >= enough:
            climbed.is_enough = True
            break
        best = climbed.best
        promising = [setting for axis in axes for setting in _promising(climbed, axis(best), take, has_time)]
        promising.sort(key=lambda setting: climbed.rates[text(setting)][0], reverse=True)
        for setting in promising[:FINALISTS]:
            _confirm(climbed, setting, take)
        climbed.outcomes |= {text(setting): BEHIND for setting in promising[FINALISTS:]}
    return climbed


def _promising(
    climbed: Climb, settings: Iterable[Setting], take: Callable[[Setting], float], has_time: Callable[[], bool]
) -> Iterator[Setting]:
    """Try each setting of an axis once, and yield those that gain over the setting before them."""
    rate = climbed.rate
    for setting in settings:
        if (name := text(setting)) in climbed.outcomes:
            continue
        climbed.outcomes[name] = UNTRIED
        if not has_time():
            continue
        try:
            before, rate = rate, take(setting)
        except TurnFailed as error:
            climbed.outcomes[name] = str(error)
            return
        except OutOfTime:
            continue
        if rate < LEAST_GAIN * before:
            climbed.outcomes[name] = NO_GAIN
            return
        climbed.outcomes[name] = OPEN
        yield setting


def _confirm(climbed: Climb, setting: Setting, take: Callable[[Setting], float]) -> None:
    """Compare a promising setting with the best so far in rounds, and keep it if it is faster."""
    best, name = text(climbed.best), text(setting)
    if climbed.rates[name][0] < LEAST_GAIN * climbed.rate:
        climbed.outcomes[name] = NO_GAIN
        return
    settings = {best: climbed.best, name: setting}
    rounds: Rounds[float] = Rounds({best: [], name: []})
    try:
        rounds.run(lambda of, _: take(settings[of]), (number for number in range(ROUNDS) if not rounds.failures))
    except OutOfTime:
        return
    if rounds.failures:
        climbed.outcomes[name] = rounds.failures.get(name, f"{UNDECIDED}: {best} failed")
        return
    gain = gain_of(rounds, name, best)
    climbed.outcomes[name] = gain.verdict_in_words
    if gain.verdict == "faster":
        climbed.best = setting
