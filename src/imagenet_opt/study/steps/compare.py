"""The worth of each step: ratios, verdicts and losses, of which tables, files and experiments are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from imagenet_opt.display.table import FAR
from imagenet_opt.measure.stats.block_ratios import Ratio, block_ratios, verdict
from imagenet_opt.study.steps.losses import FAILED, Losses, Parity
from imagenet_opt.study.steps.plan import Row
from imagenet_opt.study.steps.speeds import Speed, Speeds

MEASURES = {"compute": "network alone", "full": "full pipeline"}


@dataclass(frozen=True)
class Worth:
    """before, after: images per second without and with something, medians of the rounds. ratio: after over before."""

    before: float
    after: float
    ratio: Ratio
    verdict: str

    def __str__(self) -> str:
        """The ratio with its interval and verdict."""
        ratio = self.ratio
        if not ratio.coverage:
            return f"{ratio.ratio:.2f} x, too few rounds"
        high = f"{ratio.high:.2f}" if ratio.high < FAR else "far more"
        return f"{ratio.ratio:.2f} x ({ratio.low:.2f} to {high}) {self.verdict}"


Worths = Mapping[str, Worth]
"""By measure; empty where nothing was compared."""


@dataclass(frozen=True)
class RowResult:
    """turns: one a round; none where the row failed. worth: of the row's step. together: of the last row of a ladder,
    over the first row. losses: by seed, the curve. parity: a text says why the losses were not compared."""

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
        """Whether the row trains otherwise than its base."""
        return isinstance(self.parity, Parity) and not self.parity.agrees

    @property
    def has_failed(self) -> bool:
        return self.failure is not None or (isinstance(self.parity, str) and self.parity.startswith(FAILED))


def compare(speeds: Speeds, losses: Losses) -> list[RowResult]:
    """A result a row, in the order of the rows."""
    measured = [row for row in speeds.rows if row.name in speeds.turns]
    pairs = {row.name: row.pair for row in measured if row.pair is not None and row.base in speeds.turns}
    ground = [row.name for row in measured if row.is_ground and row.name in pairs]
    last = {ground[-1]: (ground[-1], measured[0].name)} if ground else {}
    worths = worths_of(speeds.turns, [*pairs.values(), *last.values()])
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


def worths_of(turns: Mapping[str, Sequence[Speed]], pairs: Sequence[tuple[str, str]]) -> list[Worths]:
    """The first of each pair over the second; the intervals of all pairs and measures hold together."""
    worths: list[dict[str, Worth]] = [{} for _ in pairs]
    for measure in MEASURES if pairs else ():
        values = {name: rates(some, measure) for name, some in turns.items()}
        ratios = block_ratios(values, pairs, num_comparisons=len(MEASURES) * len(pairs))
        for worth, (ours, theirs), ratio in zip(worths, pairs, ratios, strict=True):
            worth[measure] = Worth(median(values[theirs]), median(values[ours]), ratio, verdict(ratio))
    return list(worths)


def rates(turns: Sequence[Speed], measure: str) -> list[float]:
    """Images per second of each turn."""
    return [float(speed[measure] or 0.0) for speed in turns]
