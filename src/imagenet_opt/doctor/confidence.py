"""How sure a diagnosis is, and the reasons for doubt."""

from collections.abc import Iterator
from typing import NamedTuple

from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.evidence import evidence_of
from imagenet_opt.doctor.symptoms import is_lazy
from imagenet_opt.doctor.verdict import is_judged
from imagenet_opt.measure.stats.intervals import LEAST_COVERAGE

AGREES = 1 / 0.9
"""A run faster than this many times the expected rate, or than its slowest stage, contradicts its stages."""
WIDE = 0.2
"""A rate varies widely if its interval is wider than this share of its median."""
_CACHES = 1.5
"""If the second read of a file is this many times as fast as the first read, a server answered it from memory."""
_LEVELS = ("high", "medium", "low")


class Confidence(NamedTuple):
    """level: high without a doubt, medium with one doubt, else low. doubts: sentences without a full stop."""

    level: str
    doubts: tuple[str, ...]


def is_unverified(diagnosis: Diagnosis) -> bool:
    """Whether some files that should have been read from storage may have been in memory."""
    return diagnosis.measurements.facts.cold_verified is False


def confidence(diagnosis: Diagnosis) -> Confidence:
    """The confidence in a diagnosis; low if it has no verdict."""
    if not is_judged(diagnosis):
        return Confidence("low", ("there is no verdict",))
    share = f"the run gives {diagnosis.efficiency:.0%} of the expected rate"
    doubts = []
    if diagnosis.measurements.facts.not_measured:
        doubts.append(f"not measured: {diagnosis.measurements.facts.not_measured}")
    elif diagnosis.cause == "unexplained":
        doubts.append(f"{share}, and no experiment explains the gap")
    elif diagnosis.efficiency > AGREES:
        doubts.append(f"{share}: something changed between the measurements")
    doubts += [*_doubts_about_rates(diagnosis), *_doubts_about_storage(diagnosis)]
    return Confidence(_LEVELS[min(len(doubts), 2)], tuple(doubts))


def _doubts_about_rates(diagnosis: Diagnosis) -> Iterator[str]:
    estimates = {name: ceiling.estimate for name, ceiling in diagnosis.measurements.ceilings.items()}
    estimates.pop("copy_overlapped", None)  # one window, which is a mean over all copies
    if diagnosis.measurements.simulated is not None:
        estimates.pop("copy", None)  # one exact value, calculated from the profile
    if few := [estimate.num for estimate in estimates.values() if estimate.coverage < LEAST_COVERAGE]:
        windows = f"{min(few)} window{'s' * (min(few) > 1)}"
        yield f"some rates were measured in only {windows}, too few for an interval"
    full = diagnosis.measurements.ceilings.get(evidence_of(diagnosis).stage("full"))
    if full and full.estimate.high - full.estimate.low > WIDE * full.estimate.median:
        yield "the rate of the full run varies widely"
    if full and not full.facts.get("steady", True):
        prepared = "the full run was timed on batches that were already prepared"
        yield f"{prepared}, so a long run may be slower; raise --budget"
    if reason := diagnosis.measurements.facts.no_kernels_reason:
        yield f"gaps between the GPU's kernels count as work: {reason}"


def _doubts_about_storage(diagnosis: Diagnosis) -> Iterator[str]:
    facts, evidence = diagnosis.measurements.facts, evidence_of(diagnosis)
    if facts.cached_share is None:
        reason = f": {facts.cached_share_method}" if facts.cached_share_method else ""
        yield f"it is unknown whether files are in memory{reason}"
    if not evidence.is_cold:
        return
    if is_unverified(diagnosis):
        yield f"cold rates are {facts.cold_evidence or 'unverified'}"
    times = (facts.first_touch_seconds or 0.0) / (facts.second_touch_seconds or float("inf"))
    is_cached = times >= _CACHES and not is_lazy(evidence)  # a lazy mount counts in the verdict instead
    if (passes := facts.cold_passes or 1.0) > 1 and is_cached:
        yield (
            f"the data set is so small that its files were read from storage about {passes:.0f} times, and the second "
            f"read is {times:.1f} times as fast as the first: the cold rate may be too high; examine a larger data set "
            "(data.root)"
        )
