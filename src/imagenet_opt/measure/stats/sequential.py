"""Comparisons that stop as soon as they are decided, with intervals that stay valid despite the early stop."""

import math
from collections.abc import Mapping, Sequence

from imagenet_opt.measure.stats.block_ratios import MARGIN, UNDECIDED, Ratio, block_ratios, verdict
from imagenet_opt.measure.stats.intervals import CONFIDENCE

Measured = Mapping[str, Mapping[str, Sequence[float]]]
"""By measure and name, one positive value per round."""
_OF_LAST = 0.75
"""Share of the allowed error for the last look. Early looks decide only large effects: a smaller share is enough."""


def is_look(num_rounds: int) -> bool:
    """Whether comparisons are evaluated after this many rounds, so that decided ones may stop: 2, 4, 8, ..."""
    return num_rounds > 1 and num_rounds.bit_count() == 1


def looks(num_rounds: int) -> list[tuple[int, float]]:
    """The rounds after which intervals are computed, 2, 4, 8, ... and the last, each with its confidence.

    The last look may use the share _OF_LAST of the allowed error, 1 - CONFIDENCE. The first look may use a half of the
    rest, the second look a quarter, and so on. So all looks together use at most the allowed error, whichever decides.
    Source: alpha spending, Lan and DeMets, Biometrika 70 (1983).
    """
    rounds = [num for num in range(2, num_rounds) if is_look(num)] + [num_rounds]
    shares = [*((1 - _OF_LAST) / 2**place for place in range(1, len(rounds))), _OF_LAST]
    return [(num, 1 - (1 - CONFIDENCE) * share) for num, share in zip(rounds, shares, strict=True)]


def sequential_ratios(measured: Measured, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Ratio]]:
    """For each pair, by measure, first / second at the first look at which all measures were decided, or at the last.

    A name may have fewer rounds than others, since a name whose pairs are all decided takes no further part.
    """
    ratios: list[dict[str, Ratio]] = [{} for _ in pairs]
    num_rounds = {name: len(rounds) for by_name in measured.values() for name, rounds in by_name.items()}
    for num, confidence in looks(max(num_rounds.values(), default=0)):
        present = [name for name in num_rounds if num_rounds[name] >= num]
        due = [place for place, pair in enumerate(pairs) if set(pair) <= set(present) and not _decided(ratios[place])]
        for measure, by_name in measured.items():
            new = block_ratios(
                {name: by_name[name][:num] for name in present},
                [pairs[place] for place in due],
                num_comparisons=len(measured) * len(pairs),
                confidence=confidence,
            )
            for place, ratio in zip(due, new, strict=True):
                ratios[place][measure] = ratio
    return ratios


def _decided(ratios: Mapping[str, Ratio]) -> bool:
    return bool(ratios) and all(verdict(ratio) != UNDECIDED for ratio in ratios.values())


def rounds_to_decide(ratio: Ratio, num_rounds: int) -> float:
    """Total number of rounds that will probably decide a ratio that is undecided after `num_rounds` rounds.

    The interval's width shrinks with the root of the rounds, until it excludes 1 or lies within MARGIN.
    """
    if ratio.low <= 0 or math.isinf(ratio.high):
        return math.inf
    centre, reach = abs(math.log(ratio.ratio)), (math.log(ratio.high) - math.log(ratio.low)) / 2
    return num_rounds * (reach / max(centre, math.log(MARGIN) - centre)) ** 2
