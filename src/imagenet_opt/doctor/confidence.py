"""How sure a diagnosis is, and the reasons for doubt."""

from collections.abc import Iterator
from typing import NamedTuple

from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.evidence import Evidence, evidence_of
from imagenet_opt.doctor.symptoms import is_lazy
from imagenet_opt.doctor.verdict import is_judged
from imagenet_opt.measure.stats.intervals import LEAST_COVERAGE

EXPLAINED = 0.9
"""A run that reaches this share of the expected rate is explained; a share above its inverse is doubted."""
WIDE = 0.2
"""A rate varies widely if its interval is wider than this share of its median."""
_CACHES = 1.5
"""If a second touch is this many times as fast as the first, a server answered it from memory."""
_LEVELS = ("high", "medium", "low")


class Confidence(NamedTuple):
    """level: high without any doubt, medium with one doubt, else low. doubts: sentences without their full stop."""

    level: str
    doubts: tuple[str, ...]


def is_unverified(diagnosis: Diagnosis) -> bool:
    """Whether some files that should have been read from storage may have been in memory."""
    return diagnosis.measurements.facts.cold_verified is False


def confidence(diagnosis: Diagnosis) -> Confidence:
    """The confidence in a diagnosis; low if it has no verdict."""
    if not is_judged(diagnosis):
        return Confidence("low", ("there is no verdict",))
    doubts = []
    if diagnosis.measurements.facts.not_measured:
        doubts.append(f"not measured: {diagnosis.measurements.facts.not_measured}")
    elif diagnosis.cause == "unexplained":
        doubts.append(
            f"the run gives {diagnosis.efficiency:.0%} of the expected rate, and no experiment explains the gap"
        )
    elif diagnosis.efficiency > 1 / EXPLAINED:
        doubts.append(
            f"the run gives {diagnosis.efficiency:.0%} of the expected rate: something changed between the measurements"
        )
    doubts += [*_doubts_about_rates(diagnosis), *_doubts_about_storage(diagnosis)]
    return Confidence(_LEVELS[min(len(doubts), 2)], tuple(doubts))


def _doubts_about_rates(diagnosis: Diagnosis) -> Iterator[str]:
    estimates = {name: ceiling.estimate for name, ceiling in diagnosis.measurements.ceilings.items()}
    estimates.pop("copy_overlapped", None)  # a mean over all copies: one window, for any number of copies
    if diagnosis.measurements.simulated is not None:
        estimates.pop("copy", None)  # calculated from the profile: a single, exact value
    if few := sorted({estimate.num for estimate in estimates.values() if estimate.coverage < LEAST_COVERAGE}):
        yield f"some rates were measured in only {few[0]} windows, too few for an interval"
    full = diagnosis.measurements.ceilings.get(f"full_{evidence_of(diagnosis).state}")
    if full and full.estimate.high - full.estimate.low > WIDE * full.estimate.median:
        yield "the rate of the full run varies widely"
    if full and not full.facts.get("steady", True):
        yield (
            "the full run was timed on batches that were already prepared, so a long run may be slower; raise --budget"
        )
    if reason := diagnosis.measurements.facts.no_kernels_reason:
        yield f"gaps between the GPU's kernels count as work: {reason}"


def _doubts_about_storage(diagnosis: Diagnosis) -> Iterator[str]:
    facts, evidence = diagnosis.measurements.facts, evidence_of(diagnosis)
    if facts.cached_share is None:
        why = facts.cached_share_method
        yield "it is unknown whether files are in memory" + (f": {why}" if why else "")
    if evidence.is_cold and is_unverified(diagnosis):
        yield f"cold rates are {facts.cold_evidence or 'unverified'}"
    if evidence.is_cold and (passes := facts.cold_passes or 1.0) > 1 and (times := _server_gain(evidence)) > 1:
        yield (
            f"the data set is so small that its files were read from storage about {passes:.0f} times, and the "
            f"second read is {times:.1f} times as fast as the first: the cold rate may be too high; examine a larger "
            "data set (data.root)"
        )


def _server_gain(evidence: Evidence) -> float:
    """How many times as fast a server delivers files the second time; 1 if it caches none. A lazy mount counts in
    the verdict instead."""
    first, second = evidence.facts.first_touch_seconds or 0.0, evidence.facts.second_touch_seconds
    times = first / second if second else 1.0
    return times if times >= _CACHES and not is_lazy(evidence) else 1.0
