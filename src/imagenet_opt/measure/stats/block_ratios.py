"""Ratios of values that were measured in rounds, with simultaneous confidence intervals."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from imagenet_opt.measure.stats.intervals import CONFIDENCE
from imagenet_opt.measure.stats.signed_ranks import signed_rank_interval

MARGIN = 1.03
"""Ratios from 1 / MARGIN to MARGIN make no difference that a user would notice."""
UNDECIDED = "undecided"


class Ratio(NamedTuple):
    """ratio: of geometric means, or the middle of the rounds' ratios. coverage: probability that all ratios of the
    family lie between their low and high; 0 with too few rounds. num_names, error: of a Student's interval, the names
    whose noise was pooled, and the probability that this interval is wrong; 0 for another interval."""

    ratio: float
    low: float
    high: float
    coverage: float
    num_names: int = 0
    error: float = 0.0


def verdict(ratio: Ratio) -> str:
    """faster, slower: the whole interval lies on one side of 1. no difference: the interval contains 1 and lies within
    MARGIN. UNDECIDED: everything else; more rounds narrow the interval."""
    if ratio.low > 1:
        return "faster"
    if ratio.high < 1:
        return "slower"
    return "no difference" if ratio.low >= 1 / MARGIN and ratio.high <= MARGIN else UNDECIDED


def pair_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The block ratio ours / theirs over the rounds that both have, one value per round."""
    num = min(len(ours), len(theirs))
    return block_ratios({"ours": ours[:num], "theirs": theirs[:num]}, [("ours", "theirs")])[0]


def block_ratios(
    values: Mapping[str, Sequence[float]],
    pairs: Sequence[tuple[str, str]],
    *,
    num_comparisons: int | None = None,
    confidence: float = CONFIDENCE,
) -> list[Ratio]:
    """first / second of each pair. values: one positive value per name and round, in the same rounds.

    Each round is a block, so a round that is slow for all names does not change the ratios. With few rounds, the noise,
    common to all names, is the residual of the logarithms after subtracting the means of rounds and names, and the
    intervals are Student's. With many rounds they are `signed_rank_interval`s of the pair's rounds, which
    turns on a machine that was slow for a while hardly widen. Bonferroni's correction for `num_comparisons` (None: the
    number of pairs) lets all intervals contain the true ratios at once with probability `confidence`.
    Source: randomised complete blocks, Montgomery, Design and Analysis of Experiments, chapter 4.
    """
    logs = np.log(np.array(list(values.values()), dtype=float))
    num_names, num_rounds = logs.shape
    freedom = (num_names - 1) * (num_rounds - 1)
    residuals = logs - logs.mean(1, keepdims=True) - logs.mean(0, keepdims=True) + logs.mean()
    rows = dict(zip(values, logs, strict=True))
    differences = [rows[ours] - rows[theirs] for ours, theirs in pairs]
    middles = [float(each.mean()) for each in differences]
    if freedom < 1:
        return [Ratio(math.exp(middle), 0.0, math.inf, 0.0) for middle in middles]
    noise = math.sqrt(float((residuals**2).sum()) / freedom)
    error = (1 - confidence) / max(1, num_comparisons or len(pairs))
    reach = student_quantile(1 - error / 2, freedom) * noise * math.sqrt(2 / num_rounds)
    found = list[Ratio]()
    for each, middle in zip(differences, middles, strict=True):
        if (ranked := signed_rank_interval(each, error)) is not None:
            centre, low, high = ranked
            found.append(Ratio(math.exp(centre), math.exp(low), math.exp(high), confidence))
        else:
            low, high = middle - reach, middle + reach
            found.append(Ratio(math.exp(middle), math.exp(low), math.exp(high), confidence, num_names, error))
    return found


def measured_ratios(
    values: Mapping[str, Sequence[float]], pairs: Sequence[tuple[str, str]], *, num_comparisons: int | None = None
) -> dict[str, Ratio]:
    """The block ratios by the first name of each pair; pairs with a name that lacks rounds are left out."""
    num_rounds = max(map(len, values.values()), default=0)
    complete = {name: rounds for name, rounds in values.items() if num_rounds and len(rounds) == num_rounds}
    compared = [pair for pair in pairs if complete.keys() >= set(pair)]
    if not compared:
        return {}
    ratios = block_ratios(complete, compared, num_comparisons=num_comparisons)
    return {ours: ratio for (ours, _), ratio in zip(compared, ratios, strict=True)}


def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t. probability: above 0.5. freedom: degrees of freedom."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < 2 * probability - 1:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 2 * probability - 1 else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """Probability that Student's t is between -t and t. Source: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd, total = math.cos(angle), freedom % 2, 0.0
    term = cosine if odd else 1.0
    for i in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * (i / (i + 1))
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
