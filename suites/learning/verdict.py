"""Whether two trainers learn equally well: top-1 of several seeds each, compared by a rule."""

import math
from collections.abc import Sequence
from statistics import mean, stdev, variance
from typing import NamedTuple

from imagenet_opt.measure.stats.intervals import CONFIDENCE
from imagenet_opt.measure.stats.verdict import paired_ratios, student_quantile
from suites.learning.recipe import Learned

MARGIN = 1.5
"""Percentage points of top-1. The seeds of a run as short as this one differ by about half a point, and three seeds of
each trainer then give an interval of about one point on both sides."""
RULE = (
    f"within the seed noise, if the {CONFIDENCE:.0%} interval of the difference contains 0 and lies between -{MARGIN} "
    f"and +{MARGIN} points; not within the seed noise, if it does not contain 0; otherwise undecided"
)


class Difference(NamedTuple):
    """ours - theirs, of the means, in percentage points, with Student's interval for two samples of equal variance."""

    points: float
    low: float
    high: float


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Equally many runs of each, two or more, otherwise the interval has no end."""
    num, middle = len(ours), mean(ours) - mean(theirs)
    if num < 2:
        return Difference(middle, -math.inf, math.inf)
    noise = math.sqrt((variance(ours) + variance(theirs)) / num)
    reach = student_quantile((1 + CONFIDENCE) / 2, 2 * num - 2) * noise
    return Difference(middle, middle - reach, middle + reach)


def verdict(found: Difference) -> str:
    """By RULE."""
    if not found.low <= 0 <= found.high:
        return "not within the seed noise"
    return "within the seed noise" if found.low >= -MARGIN and found.high <= MARGIN else "undecided: use more --seeds"


def table(ours: Sequence[Learned], theirs: Sequence[Learned]) -> str:
    """Markdown: rows of the seeds, means and deviations; below them the difference, the ratio and the verdict."""
    lines = [
        "| seed | this trainer, top-1 % | timm, top-1 % | this trainer, images/s | timm, images/s | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for seed, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        rates = f"{our.images_per_second:.0f} | {their.images_per_second:.0f}"
        ratio = our.images_per_second / their.images_per_second
        lines.append(f"| {seed} | {our.top1:.2f} | {their.top1:.2f} | {rates} | {ratio:.2f} |")
    our_top1, their_top1 = [run.top1 for run in ours], [run.top1 for run in theirs]
    our_rates, their_rates = ([run.images_per_second for run in runs] for runs in (ours, theirs))
    (rates,) = paired_ratios({"ours": our_rates, "theirs": their_rates}, [("ours", "theirs")])
    lines.append(
        f"| mean | {mean(our_top1):.2f} | {mean(their_top1):.2f} | {mean(our_rates):.0f} | {mean(their_rates):.0f} | "
        f"{rates.ratio:.2f} |"
    )
    if len(ours) > 1:
        lines.append(f"| standard deviation | {stdev(our_top1):.2f} | {stdev(their_top1):.2f} | | | |")
    found = difference(our_top1, their_top1)
    return "\n".join(
        [
            *lines,
            "",
            f"top-1, this trainer - timm: {found.points:+.2f} points ({found.low:+.2f} to {found.high:+.2f})",
            f"images/s, this trainer / timm: {rates.ratio:.2f} ({rates.low:.2f} to {rates.high:.2f})",
            f"rule: {RULE}",
            f"verdict: {verdict(found)}",
        ]
    )
