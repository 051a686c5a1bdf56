"""How sure a diagnosis is, and what is to be doubted in it."""

from typing import NamedTuple

from imagenet_opt.measure.diagnosis import Diagnosis
from imagenet_opt.measure.statistics import LEAST_COVERAGE

EXPLAINED = 0.9
"""A run below that share of what is expected has a reason that no experiment found."""
WIDE = 0.2
"""Width of an interval, as a share of its median, from which a rate is said to scatter."""
_LEVELS = ("high", "medium", "low")


class Confidence(NamedTuple):
    """level: high without any doubt, medium with one, else low. doubts: sentences without their full stop."""

    level: str
    doubts: tuple[str, ...]


def confidence(found: Diagnosis) -> Confidence:
    doubts = []
    if not EXPLAINED <= found.efficiency <= 1 / EXPLAINED:
        doubts.append(f"measured and expected differ by {abs(1 - found.efficiency):.0%}, which no experiment explains")
    estimates = {name: ceiling.estimate for name, ceiling in found.ceilings.items()}
    if few := sorted({estimate.num for estimate in estimates.values() if estimate.coverage < LEAST_COVERAGE}):
        doubts.append(f"some rates come from {few[0]} windows only, too few for an interval")
    full = [estimate for name, estimate in estimates.items() if name.startswith("full")]
    if any(estimate.high - estimate.low > WIDE * estimate.median for estimate in full):
        doubts.append("the full run itself scatters")
    if blind := [finding for finding in found.findings if finding.fired is None]:
        doubts.append(f"{len(blind)} of {len(found.findings)} rules could not be looked at")
    return Confidence(_LEVELS[min(len(doubts), 2)], tuple(doubts))
