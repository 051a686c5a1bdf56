"""Compares the rows of a study: ratios, verdicts and losses for tables, files and experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from imagenet_opt.display.progress import duration
from imagenet_opt.display.table import FAR
from imagenet_opt.measure.stats.block_ratios import UNDECIDED, Ratio, block_ratios, verdict
from imagenet_opt.measure.stats.sequential import rounds_to_decide, sequential_ratios
from imagenet_opt.study.steps.losses import FAILED, Losses, Parity
from imagenet_opt.study.steps.plan import Row
from imagenet_opt.study.steps.speeds import Speed, Speeds

_DAY = 24 * 3600
MEASURES = {"compute": "network alone", "full": "full pipeline"}


@dataclass(frozen=True)
class Worth:
    """Gain of a step in one measure.

    before, after: median images per second without and with the step. ratio: after / before. more_seconds: estimated
    further measuring time until an undecided ratio is decided; 0 for a decided one.
    """

    before: float
    after: float
    ratio: Ratio
    verdict: str
    more_seconds: float = 0.0

    def __str__(self) -> str:
        """The ratio with its interval and verdict."""
        ratio = self.ratio
        if not ratio.coverage:
            return f"{ratio.ratio:.2f} x, too few rounds"
        high = f"{ratio.high:.2f}" if ratio.high < FAR else "far more"
        return f"{ratio.ratio:.2f} x ({ratio.low:.2f} to {high}) {self.verdict_in_words}"

    @property
    def verdict_in_words(self) -> str:
        """The verdict; for an undecided one, how much more time is likely to decide it."""
        if not self.ratio.coverage:
            return "too few rounds"
        return (
            f"{self.verdict}, about {duration(self.more_seconds)} more"
            if 0 < self.more_seconds < _DAY
            else self.verdict
        )


Worths = Mapping[str, Worth]
"""By measure; empty where nothing was compared."""


@dataclass(frozen=True)
class RowResult:
    """All results of a row.

    turns: one per round; empty if the row failed. worth: gain of the row's step. together: gain over the first row, for
    the last row of a ladder only. losses: loss curve by seed. parity: comparison of the losses, or the reason why they
    were not compared.
    """

    row: Row
    turns: Sequence[Speed]
    failure: str | None
    worth: Worths
    together: Worths
    losses: Mapping[int, list[float]]
    parity: Parity | str | None

    def rates(self, measure: str) -> list[float]:
        return rates(self.turns, measure)

    @property
    def differs(self) -> bool:
        """Whether the row's loss differs from that of its base."""
        return isinstance(self.parity, Parity) and not self.parity.agrees

    @property
    def has_failed(self) -> bool:
        return self.failure is not None or (isinstance(self.parity, str) and self.parity.startswith(FAILED))


def compare(speeds: Speeds, losses: Losses) -> list[RowResult]:
    """Compute the result of each row, in the order of the rows."""
    pairs, last = _pairs(speeds)
    worths = worths_of(speeds.turns, [*pairs.values(), *last.values()], in_race=speeds.in_race)
    by_name = dict(zip(pairs, worths, strict=False))
    return [
        RowResult(
            row,
            speeds.turns.get(row.name, []),
            speeds.failures.get(row.name),
            by_name.get(row.name, {}),
            worths[-1] if row.name in last else {},
            losses.curves.get(row.name, {}),
            losses.parities.get(row.name),
        )
        for row in speeds.rows
    ]


def _pairs(speeds: Speeds) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]:
    """The pair of rows to compare for each row; and the pair of the last and first row of a ladder, by the last row."""
    measured = [row for row in speeds.rows if row.name in speeds.turns]
    pairs = {row.name: row.pair for row in measured if row.pair is not None and row.base in speeds.turns}
    ground = [row.name for row in measured if row.is_ground and row.name in pairs]
    return pairs, {ground[-1]: (ground[-1], measured[0].name)} if ground else {}


def undecided_rows(speeds: Speeds) -> set[str]:
    """Names of the rows that need further rounds, because one of their comparisons is undecided."""
    pairs, last = _pairs(speeds)
    both = [*pairs.values(), *last.values()]
    worths = worths_of(speeds.turns, both, in_race=True)
    open_pairs = [
        pair
        for pair, worth in zip(both, worths, strict=True)
        if not worth or UNDECIDED in {comparison.verdict for comparison in worth.values()}
    ]
    return {name for pair in open_pairs for name in pair}


def worths_of(
    turns: Mapping[str, Sequence[Speed]], pairs: Sequence[tuple[str, str]], *, in_race: bool = False
) -> list[Worths]:
    """Compare the first row of each pair with the second; all intervals hold simultaneously.

    in_race: whether rows stopped as soon as their comparisons were decided; otherwise all rows have the same rounds.
    """
    if not pairs:
        return []
    values = {measure: {name: rates(some, measure) for name, some in turns.items()} for measure in MEASURES}
    if in_race:
        ratios = sequential_ratios(values, pairs)
    else:
        num_comparisons = len(MEASURES) * len(pairs)
        by_measure = {
            measure: block_ratios(by_name, pairs, num_comparisons=num_comparisons)
            for measure, by_name in values.items()
        }
        ratios = [{measure: by_measure[measure][place] for measure in MEASURES} for place in range(len(pairs))]
    return [
        {measure: _worth(turns, pair, measure, ratio) for measure, ratio in by_measure.items()}
        for pair, by_measure in zip(pairs, ratios, strict=True)
    ]


def _worth(turns: Mapping[str, Sequence[Speed]], pair: tuple[str, str], measure: str, ratio: Ratio) -> Worth:
    ours, theirs = (turns[name] for name in pair)
    before, after = (median(rates(some, measure)) for some in (theirs, ours))
    if (decision := verdict(ratio)) != UNDECIDED or not ratio.coverage:
        return Worth(before, after, ratio, decision)
    num = min(len(ours), len(theirs))
    seconds = sum(median(speed.get("turn_seconds") or 0.0 for speed in some) for some in (ours, theirs))
    return Worth(before, after, ratio, decision, max(1.0, rounds_to_decide(ratio, num) - num) * seconds)


def rates(turns: Sequence[Speed], measure: str) -> list[float]:
    """Images per second of each turn."""
    return [float(speed[measure] or 0.0) for speed in turns]
