"""How sure a diagnosis is, and what is to be doubted in it."""

from typing import NamedTuple

from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.evidence import Evidence, evidence_of
from imagenet_opt.doctor.symptoms import is_lazy
from imagenet_opt.doctor.verdict import is_judged
from imagenet_opt.measure.stats.intervals import LEAST_COVERAGE

EXPLAINED = 0.9
"""A run within that share of what is expected is explained, either way."""
WIDE = 0.2
"""Width of an interval, as a share of its median, from which a rate is said to scatter."""
_CACHES = 1.5
"""A second touch of files that is so many times as fast as the first is answered from a server's memory."""
_LEVELS = ("high", "medium", "low")


class Confidence(NamedTuple):
    """level: high without any doubt, medium with one, else low. doubts: sentences without their full stop."""

    level: str
    doubts: tuple[str, ...]


def is_unverified(found: Diagnosis) -> bool:
    """Whether some files that were to be read from storage may have been in memory."""
    return found.facts.cold_verified is False


def confidence(found: Diagnosis) -> Confidence:
    if not is_judged(found):
        return Confidence("low", ("there is no verdict",))
    doubts = []
    if found.facts.not_measured:
        doubts.append(f"not measured: {found.facts.not_measured}")
    elif found.cause == "unexplained":
        doubts.append(f"the run gives {found.efficiency:.0%} of what is expected, and no experiment says why")
    elif found.efficiency > 1 / EXPLAINED:
        doubts.append(f"the run gives {found.efficiency:.0%} of what is expected: something changed meanwhile")
    estimates = {name: ceiling.estimate for name, ceiling in found.ceilings.items()}
    estimates.pop("copy_overlapped", None)  # a mean over all copies: one window, however many there were
    if found.simulated is not None:
        estimates.pop("copy", None)  # calculated from the profile: one value, and exact
    if few := sorted({estimate.num for estimate in estimates.values() if estimate.coverage < LEAST_COVERAGE}):
        doubts.append(f"some rates come from {few[0]} windows only, too few for an interval")
    seen = evidence_of(found)
    full = found.ceilings.get(f"full_{seen.state}")
    if full and full.estimate.high - full.estimate.low > WIDE * full.estimate.median:
        doubts.append("the full run itself scatters")
    if full and not full.facts.get("steady", True):
        doubts.append(
            "the full run was timed on batches that were made before, and may be slower in the long run; raise --budget"
        )
    if found.facts.cached_share is None:
        why = found.facts.cached_share_method
        doubts.append("whether files are in memory is not known" + (f": {why}" if why else ""))
    if found.facts.no_kernels_reason:
        doubts.append(f"gaps between the GPU's kernels count as work: {found.facts.no_kernels_reason}")
    if seen.is_cold and is_unverified(found):
        doubts.append(f"cold rates are {found.facts.cold_evidence or 'unverified'}")
    if seen.is_cold and (passes := found.facts.cold_passes or 1.0) > 1 and (times := _server_gain(seen)) > 1:
        doubts.append(
            f"the data set is so small that its files were read from storage about {passes:.0f} times, and a second "
            f"reading is {times:.1f} times as fast as a first: the cold rate may be too high; examine a larger "
            "data set (data.root)"
        )
    return Confidence(_LEVELS[min(len(doubts), 2)], tuple(doubts))


def _server_gain(seen: Evidence) -> float:
    """How many times as fast files are read again, where some server keeps them; 1 where none does. What is known of a
    lazy mount counts in the verdict."""
    first, second = seen.facts.first_touch_seconds or 0.0, seen.facts.second_touch_seconds
    times = first / second if second else 1.0
    return times if times >= _CACHES and not is_lazy(seen) else 1.0
