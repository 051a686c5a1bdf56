"""Comparisons that stop as soon as they are decided, with intervals that stay valid despite the early stop."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from imagenet_opt.measure.stats.block_ratios import MARGIN, UNDECIDED, Ratio, block_ratios, student_quantile, verdict
from imagenet_opt.measure.stats.intervals import CONFIDENCE

_OF_LAST = 0.75
"""Share of the allowed error for the last look. Early looks decide only large effects: a smaller share is enough."""

_LARGE_FREEDOM = 200
"""More degrees of freedom hardly change Student's quantile."""


def is_look(num_rounds: int) -> bool:
    """Whether comparisons are evaluated after this many rounds, so that decided ones may stop: 2, 4, 8, ..."""
    return num_rounds > 1 and num_rounds.bit_count() == 1


def looks(num_rounds: int, *, is_over: bool) -> list[tuple[int, float]]:
    """The rounds after which intervals are computed, 2, 4, 8, ... and the last, each with its confidence.

    is_over: whether round `num_rounds` was the last. A last look follows, for what is undecided until then; it may come
    after the same round as the look before. Of the allowed error, 1 - CONFIDENCE, it may use _OF_LAST. Of the rest the
    first look may use a half, the second a quarter, and so on. So all looks together use no more than is allowed,
    whichever of them decides. Source: alpha spending, Lan and DeMets, Biometrika 70 (1983).
    """
    rounds = [num for num in range(2, num_rounds + 1) if is_look(num)]
    shares = [(num, (1 - _OF_LAST) / 2**place) for place, num in enumerate(rounds, 1)]
    shares += [(num_rounds, _OF_LAST)] if is_over else []
    return [(num, 1 - (1 - CONFIDENCE) * share) for num, share in shares]


def confidence_of_all(num_continued: int) -> float:
    """Confidence of all looks together, if the measuring was continued this many times after a last look."""
    return max(0.0, 1 - (1 - CONFIDENCE) * (1 + _OF_LAST * num_continued))


def sequential_ratios(
    values: Mapping[str, Sequence[float]], pairs: Sequence[tuple[str, str]], *, num_comparisons: int, is_over: bool
) -> list[Ratio | None]:
    """first / second of each pair at the first look at which it was decided, or at the last look; None before a look.

    values: by name, one positive value per round. A name may have fewer rounds than others, since it takes part only
    as long as one of its pairs is undecided. num_comparisons: of the whole family, see `block_ratios`. is_over: whether
    no further rounds follow.
    """
    ratios: list[Ratio | None] = [None for _ in pairs]
    for num, confidence in looks(max(map(len, values.values()), default=0), is_over=is_over):
        present = {name: rounds[:num] for name, rounds in values.items() if len(rounds) >= num}
        due = [i for i, pair in enumerate(pairs) if present.keys() >= set(pair) and not _is_decided(ratios[i])]
        due_pairs = [pairs[i] for i in due]
        new = block_ratios(present, due_pairs, num_comparisons=num_comparisons, confidence=confidence) if due else []
        for i, ratio in zip(due, new, strict=True):
            ratios[i] = ratio
    return ratios


def _is_decided(ratio: Ratio | None) -> bool:
    return ratio is not None and verdict(ratio) != UNDECIDED


def more_rounds(ratio: Ratio, num_rounds: int) -> float:
    """Further rounds that will probably decide an undecided ratio; 0 for a decided one, or one without an interval."""
    is_open = verdict(ratio) == UNDECIDED and ratio.coverage
    return rounds_to_decide(ratio, num_rounds) - num_rounds if is_open else 0.0


def must_shrink(ratio: Ratio) -> float:
    """How many times narrower the interval of an undecided ratio must be to exclude 1 or to lie within MARGIN."""
    centre, reach = abs(math.log(ratio.ratio)), (math.log(ratio.high) - math.log(ratio.low)) / 2
    return reach / max(centre, math.log(MARGIN) - centre)


def rounds_to_decide(ratio: Ratio, num_rounds: int) -> float:
    """Total number of rounds that will probably decide a ratio that is undecided after `num_rounds` rounds.

    The interval's width shrinks with the root of the rounds, and with Student's quantile.
    """
    if ratio.low <= 0 or math.isinf(ratio.high):
        return math.inf
    shrinks = must_shrink(ratio)
    most = max(num_rounds + 1, math.ceil(num_rounds * shrinks**2))
    if not ratio.num_names:
        return most

    def width(num: int) -> float:
        freedom = min(_LARGE_FREEDOM, (ratio.num_names - 1) * (num - 1))
        return student_quantile(1 - ratio.error / 2, freedom) / math.sqrt(num)

    goal = width(num_rounds) / shrinks
    rounds = range(num_rounds + 1, most)
    return num_rounds + 1 + bisect_left(rounds, True, key=lambda num: width(num) <= goal)
