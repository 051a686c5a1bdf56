"""Finds the fastest of several settings: all have a short turn, then the better half a longer one, and so on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from imagenet_opt.measure.stats.block_ratios import UNDECIDED, pair_ratio, verdict
from imagenet_opt.measure.stats.rounds import OutOfTime, TurnFailed

UNTRIED = "not tried: budget"
"""The verdict on a setting that had no turn."""
TURNS, TURNS_OF_SEVERAL = 4, 5
"""Of each of the last two, where there is one candidate and where the best of several is taken. Among equals a contest
then names a winner once in twenty times or less, up to eight candidates (simulated)."""


@dataclass
class Contest:
    """turns: images per second of each turn, by name. base: the name that all others are compared with. failures: by
    name, the reason. finalist: the best name besides the base; None if none was faster in each of its turns."""

    base: str
    turns: dict[str, list[float]]
    failures: dict[str, str] = field(default_factory=dict)
    finalist: str | None = None

    @property
    def winner(self) -> str:
        """The base, unless the verdict on the finalist is "faster"."""
        return self.finalist if self.finalist is not None and self.verdict(self.finalist) == "faster" else self.base

    @property
    def num_turns(self) -> int:
        """Number of turns for the base and the finalist, depending on how many candidates gave a rate."""
        num_candidates = sum(bool(rates) for name, rates in self.turns.items() if name != self.base)
        return TURNS if num_candidates == 1 else TURNS_OF_SEVERAL

    def rate(self, name: str) -> float:
        return median(self.turns[name])

    def verdict(self, name: str) -> str:
        """Verdict on a setting compared with the base."""
        if name in self.failures:
            return self.failures[name]
        if not self.turns[name]:
            return UNTRIED
        if name == self.base:
            return "as it was"
        if name == self.finalist:
            lacking = min(len(self.turns[name]), len(self.turns[self.base])) < self.num_turns
            return f"{UNDECIDED}: budget" if lacking else verdict(pair_ratio(self.turns[name], self.turns[self.base]))
        if max(self.turns[name]) <= max(self.turns[self.base]):
            return "not faster"
        if self.finalist is not None:
            return "slower than the best"
        return verdict(pair_ratio(self.turns[name], self.turns[self.base]))


def hold_contest(names: Sequence[str], turn: Callable[[str, float], float], *, seconds: float) -> Contest:
    """Run turns until the best is known.

    names: the first one is the base. turn: images per second of a turn of a given duration. In each round every
    remaining name has a turn, twice as long as in the round before; then the slower half, and names that were not
    faster than the base, leave. The base and the last name take turns until both have had `num_turns`. A turn may raise
    TurnFailed, which ends that name only, and OutOfTime, which ends the contest. TurnFailed of the base passes through.
    """
    contest = Contest(names[0], {name: [] for name in names})
    left = list(names[1:])
    try:
        while True:
            left = _round(contest, left, turn, seconds)
            left = left[: max(1, len(left) // 2)]
            seconds *= 2
            if len(left) <= 1:
                break
        contest.finalist = left[0] if left else None
        while left and min(len(contest.turns[name]) for name in (contest.base, *left)) < contest.num_turns:
            left = _round(contest, left, turn, seconds, backwards=len(contest.turns[contest.base]) % 2 == 1)
            contest.finalist = left[0] if left else None
    except OutOfTime:
        contest.finalist = _best(contest)
    return contest


def _round(
    contest: Contest, left: Sequence[str], turn: Callable[[str, float], float], seconds: float, backwards: bool = False
) -> list[str]:
    """Names of `left` that were faster than the base in this round, the fastest first."""
    order = [contest.base, *left]
    now: dict[str, float] = {}
    for name in reversed(order) if backwards else order:
        try:
            now[name] = turn(name, seconds)
        except TurnFailed as error:
            if name == contest.base:
                raise
            contest.failures[name] = str(error)
            continue
        contest.turns[name].append(now[name])
    faster = [name for name in left if name in now and now[name] > now[contest.base]]
    return sorted(faster, key=lambda name: -contest.rate(name))


def _best(contest: Contest) -> str | None:
    """The best of the names that had a turn and were faster than the base."""
    if not contest.turns[contest.base]:
        return None
    tried = [name for name, turns in contest.turns.items() if turns and name != contest.base]
    faster = [name for name in tried if contest.rate(name) > contest.rate(contest.base)]
    return max(faster, key=contest.rate, default=None)
