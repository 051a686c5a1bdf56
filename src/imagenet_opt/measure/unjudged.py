"""A diagnosis where an experiment failed: the usual verdict as far as it can be given, else what there is."""

from dataclasses import fields

from imagenet_opt.measure.diagnosis import CAUSES, Diagnosis, Measurements
from imagenet_opt.measure.evidence import Evidence
from imagenet_opt.measure.rules import NEEDS
from imagenet_opt.measure.verdict import judge

NOT_MEASURED = "not_measured"
"""Key of the text that names the experiments that failed, and why."""


def conclude(seen: Evidence) -> Diagnosis:
    """The verdict; without what it rests on a diagnosis that is none (`is_judged`), with all that was measured.

    Raises KeyError where something is missing though nothing failed.
    """
    missing = seen.lacks(NEEDS)
    if not missing:
        return judge(seen)
    if NOT_MEASURED not in seen.texts:
        raise KeyError(f"no {', '.join(missing)}, though no experiment failed")
    shared = {field.name: getattr(seen, field.name) for field in fields(Measurements)}
    rates = [ceiling.images_per_second for ceiling in seen.ceilings.values()]
    return Diagnosis(
        sentence=f"Not judged: {seen.texts[NOT_MEASURED]}",
        cause="unexplained",
        expected=min(rates, default=0.0),
        measured=0.0,
        next_stage=None,
        next_gain=None,
        waterfall=(),
        findings=seen.environment,
        **shared,
    )


def is_judged(found: Diagnosis) -> bool:
    return bool(found.measured)


def meaning(found: Diagnosis) -> str:
    """Of the verdict's cause."""
    return CAUSES.get(found.cause, found.cause) if is_judged(found) else "not judged"
