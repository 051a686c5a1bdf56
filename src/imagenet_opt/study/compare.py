"""Compares the rows of a study: gains and losses of each row, for tables, files and experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagenet_opt.compare.gain import Gain, Pair, gains
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.compare.turn import Turn
from imagenet_opt.study.losses import FAILED, Losses, Parity
from imagenet_opt.study.plan import Row
from imagenet_opt.study.speeds import round_seconds

MEASURES = {"compute": "network alone", "full": "full pipeline"}
"""By field of a Turn, its name for people."""


class Worths(dict[str, Gain]):
    """Gain of a step by measure; empty if nothing was compared."""

    @property
    def verdicts(self) -> set[str]:
        return {worth.verdict for worth in self.values()}

    @property
    def is_gain(self) -> bool:
        """Whether one measure is faster and none is slower."""
        return "faster" in self.verdicts and "slower" not in self.verdicts

    def __str__(self) -> str:
        return ", ".join(f"{MEASURES[measure]} {worth}" for measure, worth in self.items())


@dataclass(frozen=True)
class RowResult:
    """All results of a row.

    turns: one per round; empty if the row failed in the first round. failure: the reason, if it failed. worth: gain of
    its step. together: gain over the first row, for the last row of a ladder only. losses: loss curve by seed.
    parity: comparison of the losses, or the reason why they were not compared.
    """

    row: Row
    turns: Sequence[Turn]
    failure: str | None
    worth: Worths
    together: Worths
    losses: Mapping[int, list[float]]
    parity: Parity | str | None

    def rates(self, measure: str) -> list[float]:
        return [getattr(turn, measure) for turn in self.turns]

    @property
    def differs(self) -> bool:
        """Whether the row's loss differs from that of its base."""
        return isinstance(self.parity, Parity) and not self.parity.agrees

    @property
    def has_failed(self) -> bool:
        return self.failure is not None or (isinstance(self.parity, str) and self.parity.startswith(FAILED))


def compare(rows: Sequence[Row], rounds: Rounds[Turn], losses: Losses) -> list[RowResult]:
    """Compute the result of each row, in the order of the rows."""
    turns = {name: of_row for name, of_row in rounds.results.items() if of_row}
    pairs = [row.pair for row in rows if row.pair and turns.keys() >= set(row.pair)]
    ground = [row.name for row in rows if row.is_ground and row.name in turns][-1:]
    worths = worths_of(turns, [*pairs, *((name, rows[0].name) for name in ground)])
    return [
        RowResult(
            row,
            turns.get(row.name, []),
            rounds.failures.get(row.name),
            worth=worths.get(row.pair or ("", ""), Worths()),
            together=worths[row.name, rows[0].name] if row.name in ground else Worths(),
            losses=losses.curves.get(row.name, {}),
            parity=losses.parities.get(row.name),
        )
        for row in rows
    ]


def worths_of(turns: Mapping[str, Sequence[Turn]], pairs: Sequence[Pair]) -> dict[Pair, Worths]:
    """Compare the first row of each pair with the second; all intervals hold simultaneously."""
    worths, seconds = {pair: Worths() for pair in pairs}, round_seconds(turns)
    for measure in MEASURES:
        rates = {name: [getattr(turn, measure) for turn in of_row] for name, of_row in turns.items()}
        num = len(MEASURES) * len(pairs)
        for pair, gain in gains(rates, pairs, num_comparisons=num, round_seconds=seconds).items():
            worths[pair][measure] = gain
    return worths
