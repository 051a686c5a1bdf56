"""Compares the rows of a study: gains and losses of each row, for tables, files and experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from imagenet_opt.display.table import FAR, Cell, ratio_cells, verdict_in_words
from imagenet_opt.measure.stats.paired_ratios import Ratio, more_rounds, paired_ratios, verdict
from imagenet_opt.study.steps.losses import FAILED, Losses, Parity
from imagenet_opt.study.steps.plan import Row
from imagenet_opt.study.steps.turn import SECONDS, Speed, Speeds

MEASURES = {"compute": "network alone", "full": "full pipeline"}


@dataclass(frozen=True)
class Worth:
    """Gain of a step in one measure.

    before, after: median images per second without and with the step. ratio: after / before. round_seconds: time of a
    round of all rows.
    """

    before: float
    after: float
    ratio: Ratio
    round_seconds: float

    @property
    def verdict(self) -> str:
        return verdict(self.ratio)

    @property
    def more_rounds(self) -> float:
        """Estimated further rounds until an undecided ratio is decided; 0 for a decided one."""
        return more_rounds(self.ratio)

    @property
    def more_seconds(self) -> float:
        """Time of `more_rounds`."""
        return self.more_rounds * self.round_seconds

    def __str__(self) -> str:
        """The ratio with its interval and verdict."""
        ratio = self.ratio
        if not ratio.coverage:
            return f"{ratio.ratio:.2f} x, too few rounds"
        high = f"{ratio.high:.2f}" if ratio.high < FAR else f"over {FAR:g}"
        return f"{ratio.ratio:.2f} x ({ratio.low:.2f} to {high}) {self.verdict_in_words}"

    @property
    def cells(self) -> tuple[Cell, ...]:
        """For a table: images per second without and with the step, the ratio, its interval, the verdict."""
        ratio, interval, _ = ratio_cells(self.ratio)
        return f"{self.before:,.0f} -> {self.after:,.0f}", ratio, interval, self.verdict_in_words

    @property
    def verdict_in_words(self) -> str:
        """The verdict; for an undecided one, how much more time is likely to decide it."""
        if not self.ratio.coverage:
            return "too few rounds"
        return verdict_in_words(self.ratio, self.more_seconds)


class Worths(dict[str, Worth]):
    """Gain of a step by measure; empty if nothing was compared."""

    @property
    def verdicts(self) -> set[str]:
        return {worth.verdict for worth in self.values()}

    @property
    def is_gain(self) -> bool:
        """Whether one measure is faster and none is slower."""
        return "faster" in self.verdicts and "slower" not in self.verdicts


Pair = tuple[str, str]
"""Names of two rows, with a step and without it."""


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
        return rates_of(self.turns, measure)

    @property
    def full_turns(self) -> list[Speed]:
        """The rounds with a full run."""
        return [speed for speed in self.turns if speed.get("full") is not None]

    @property
    def differs(self) -> bool:
        """Whether the row's loss differs from that of its base."""
        return isinstance(self.parity, Parity) and not self.parity.agrees

    @property
    def has_failed(self) -> bool:
        return self.failure is not None or (isinstance(self.parity, str) and self.parity.startswith(FAILED))


def compare(speeds: Speeds, losses: Losses) -> list[RowResult]:
    """Compute the result of each row, in the order of the rows."""
    pairs, together = pairs_of(speeds.rows, speeds.turns)
    worths = worths_of(speeds.turns, [*pairs, *together])
    return [
        RowResult(
            row,
            speeds.turns.get(row.name, []),
            speeds.failures.get(row.name),
            worth=worths.get(row.pair, Worths()) if row.pair else Worths(),
            together=next((worths[pair] for pair in together if pair[0] == row.name), Worths()),
            losses=losses.curves.get(row.name, {}),
            parity=losses.parities.get(row.name),
        )
        for row in speeds.rows
    ]


def pairs_of(rows: Sequence[Row], turns: Mapping[str, object]) -> tuple[list[Pair], list[Pair]]:
    """The pairs to compare of all measured rows; and for a ladder its last and first row as the only pair of a list."""
    measured = [row for row in rows if row.pair and turns.keys() >= set(row.pair)]
    ground = [row.name for row in measured if row.is_ground]
    return [row.pair for row in measured if row.pair], [(ground[-1], rows[0].name)] if ground else []


def round_seconds(turns: Mapping[str, Sequence[Speed]]) -> float:
    """Time of a round of all rows, in both measures."""
    return sum(_seconds(row, key) for row in turns.values() for key in SECONDS.values())


def worths_of(turns: Mapping[str, Sequence[Speed]], pairs: Sequence[Pair]) -> dict[Pair, Worths]:
    """Compare the first row of each pair with the second; all intervals hold simultaneously."""
    seconds, worths = round_seconds(turns), {pair: Worths() for pair in pairs}
    for measure in MEASURES if pairs else ():
        values = {name: rates_of(row, measure) for name, row in turns.items()}
        ratios = paired_ratios(values, pairs, num_comparisons=len(MEASURES) * len(pairs))
        for pair, ratio in zip(pairs, ratios, strict=True):
            after, before = (median(values[name]) for name in pair)
            worths[pair][measure] = Worth(before, after, ratio, seconds)
    return worths


def _seconds(turns: Sequence[Speed], key: str) -> float:
    return median([seconds for speed in turns if (seconds := speed.get(key)) is not None] or [0.0])


def rates_of(turns: Sequence[Speed], measure: str) -> list[float]:
    """Images per second of each round in which this was measured."""
    return [rate for speed in turns if (rate := speed.get(measure)) is not None]
