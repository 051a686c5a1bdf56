"""What a change is worth: the ratio of two rates with its interval, in words and for tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.display.progress import roughly
from imagenet_opt.display.table import FAR, Cell, ratio_interval
from imagenet_opt.measure.stats.verdict import Ratio, more_rounds, paired_ratios, verdict

Pair = tuple[str, str]
"""Names of two setups: with a change and without it."""


@dataclass(frozen=True)
class Gain:
    """before, after: median images per second without and with a change. ratio: after / before. round_seconds: time of
    a round of all setups."""

    before: float
    after: float
    ratio: Ratio
    round_seconds: float = 0.0

    @property
    def verdict(self) -> str:
        return verdict(self.ratio)

    @property
    def more_seconds(self) -> float:
        """Estimated time of further rounds until an undecided ratio is decided; 0 for a decided one."""
        return more_rounds(self.ratio) * self.round_seconds

    def __str__(self) -> str:
        """The ratio with its interval and verdict."""
        ratio = self.ratio
        if not ratio.coverage:
            return f"{ratio.ratio:.2f} x, too few rounds"
        high = f"{ratio.high:.2f}" if ratio.high < FAR else f"over {FAR:g}"
        return f"{ratio.ratio:.2f} x ({ratio.low:.2f} to {high}) {self.verdict_in_words}"

    @property
    def cells(self) -> tuple[Cell, ...]:
        """For a table: images per second without and with the change, the ratio, its interval, the verdict."""
        rates = f"{self.before:,.0f} -> {self.after:,.0f}"
        return rates, self.ratio.ratio, ratio_interval(self.ratio), self.verdict_in_words

    @property
    def verdict_in_words(self) -> str:
        """The verdict; for an undecided one, how much more time is likely to decide it."""
        if not self.ratio.coverage:
            return "too few rounds"
        return f"{self.verdict}, {roughly(self.more_seconds)} more" if self.more_seconds else self.verdict


def gains(
    rates: Mapping[str, Sequence[float]],
    pairs: Sequence[Pair],
    *,
    num_comparisons: int | None = None,
    round_seconds: float = 0.0,
) -> dict[Pair, Gain]:
    """Compare the first setup of each pair with the second; all intervals hold at once.

    rates: images per second by name, one value per round. num_comparisons: see `paired_ratios`.
    """
    ratios = paired_ratios(rates, pairs, num_comparisons=num_comparisons)
    return {
        (ours, theirs): Gain(median(rates[theirs]), median(rates[ours]), ratio, round_seconds)
        for (ours, theirs), ratio in zip(pairs, ratios, strict=True)
    }


def gain_of(rounds: Rounds[float], ours: str, theirs: str) -> Gain:
    """Compare two setups of these rounds of images per second."""
    pair, num_rounds = (ours, theirs), max(1, *map(len, rounds.results.values()))
    return gains(rounds.results, [pair], round_seconds=rounds.seconds / num_rounds)[pair]
