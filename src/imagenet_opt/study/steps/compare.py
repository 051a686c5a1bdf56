"""Compares the rows of a study: gains and losses of each row, for tables, files and experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from imagenet_opt.display.table import FAR, Cell, ratio_cells, verdict_in_words
from imagenet_opt.measure.stats.block_ratios import UNDECIDED, Ratio, block_ratios, verdict
from imagenet_opt.measure.stats.sequential import more_rounds, sequential_ratios
from imagenet_opt.study.steps.losses import FAILED, Losses, Parity
from imagenet_opt.study.steps.plan import Row
from imagenet_opt.study.steps.turn import Speed, Speeds

MEASURES = {"compute": "network alone", "full": "full pipeline"}
LEAST_TO_FORESEE = 8
"""Intervals from fewer rounds say little about how many more rounds decide."""
_DOUBT = 2.0
"""The time until a decision may be this many times shorter than expected."""
SECONDS = {"compute": "alone_seconds", "full": "turn_seconds"}
"""By measure, the result that says how long a round of a row takes."""


@dataclass(frozen=True)
class Worth:
    """Gain of a step in one measure.

    before, after: median images per second without and with the step. ratio: after / before, from num_rounds rounds.
    round_seconds: time of a round of all rows that are undecided, or of all rows if none stops earlier.
    """

    before: float
    after: float
    ratio: Ratio
    num_rounds: int
    round_seconds: float

    @property
    def verdict(self) -> str:
        return verdict(self.ratio)

    @property
    def more_rounds(self) -> float:
        """Estimated further rounds until an undecided ratio is decided; 0 for a decided one."""
        return more_rounds(self.ratio, self.num_rounds)

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
    worths = worths_of(speeds.turns, [*pairs, *together], in_race=speeds.in_race)
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


def are_decided(rows: Sequence[Row], turns: Mapping[str, Sequence[Speed]]) -> list[bool]:
    """For each measured step, whether it is decided in all measures."""
    pairs, together = pairs_of(rows, turns)
    worths = worths_of(turns, [*pairs, *together], in_race=True, is_over=False)
    return [len(worths[pair]) == len(MEASURES) and UNDECIDED not in worths[pair].verdicts for pair in pairs]


def undecided_rows(
    rows: Sequence[Row], turns: Mapping[str, Sequence[Speed]], *, num_rounds: int, seconds_left: float
) -> dict[str, set[str]]:
    """By measure, names of the rows that need further rounds, because one of their comparisons is undecided.

    From LEAST_TO_FORESEE rounds on, a measure of which no comparison is likely to be decided in _DOUBT times
    `seconds_left` gets no further rounds until the next look, if another measure can use them. It is given up only
    where the last look would not decide it either, so that the choice adds no false claims. Rows with unequal numbers
    of rounds are not continued: a row that is now compared with another row, because one between them failed.
    """
    pairs, together = pairs_of(rows, turns)
    worths = worths_of(turns, [*pairs, *together], in_race=True, is_over=False)
    undecided = {
        measure: [
            pair
            for pair, worth in worths.items()
            if (measure not in worth or worth[measure].verdict == UNDECIDED)
            and len({len(rates_of(turns[name], measure)) for name in pair}) == 1
        ]
        for measure in MEASURES
    }
    names = {measure: {name for pair in some for name in pair} for measure, some in undecided.items()}
    if num_rounds < LEAST_TO_FORESEE:
        return names
    at_end = worths_of(turns, [*pairs, *together], in_race=True)
    in_reach = {
        measure
        for measure, some in undecided.items()
        if (more := [at_end[pair][measure].more_rounds for pair in some if measure in at_end[pair]])
        and min(more) * round_seconds(turns, {measure: names[measure]}) <= _DOUBT * seconds_left
    }
    return {measure: some if measure in (in_reach or MEASURES) else set() for measure, some in names.items()}


def round_seconds(turns: Mapping[str, Sequence[Speed]], names: Mapping[str, set[str]]) -> float:
    """Time of the next round of these rows, by measure."""
    return sum(_seconds(turns[name], measure) for measure, some in names.items() for name in some)


def worths_of(
    turns: Mapping[str, Sequence[Speed]], pairs: Sequence[Pair], *, in_race: bool = False, is_over: bool = True
) -> dict[Pair, Worths]:
    """Compare the first row of each pair with the second; all intervals hold simultaneously.

    in_race: whether rows stopped as soon as their comparisons were decided; otherwise all rows have the same rounds.
    is_over: whether no further rounds follow. A measure without an interval so far is left out.
    """
    num_comparisons = len(MEASURES) * len(pairs)
    values = {measure: {name: rates_of(row, measure) for name, row in turns.items()} for measure in MEASURES}
    known = dict[str, dict[Pair, Ratio]]()
    for measure in MEASURES if pairs else ():
        ratios: Sequence[Ratio | None]
        if in_race:
            ratios = sequential_ratios(values[measure], pairs, num_comparisons=num_comparisons, is_over=is_over)
        else:
            ratios = block_ratios(values[measure], pairs, num_comparisons=num_comparisons)
        known[measure] = {pair: ratio for pair, ratio in zip(pairs, ratios, strict=True) if ratio is not None}
    going_on = {
        measure: {name for pair, ratio in some.items() if verdict(ratio) == UNDECIDED or not in_race for name in pair}
        for measure, some in known.items()
    }
    seconds, worths = round_seconds(turns, going_on), {pair: Worths() for pair in pairs}
    for measure, some in known.items():
        for pair, ratio in some.items():
            rates = [values[measure][name] for name in pair]
            after, before = map(median, rates)
            worths[pair][measure] = Worth(before, after, ratio, min(map(len, rates)), seconds)
    return worths


def _seconds(turns: Sequence[Speed], measure: str) -> float:
    return median([seconds for speed in turns if (seconds := speed.get(SECONDS[measure])) is not None] or [0.0])


def rates_of(turns: Sequence[Speed], measure: str) -> list[float]:
    """Images per second of each round in which this was measured."""
    return [rate for speed in turns if (rate := speed.get(measure)) is not None]
