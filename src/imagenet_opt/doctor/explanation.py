"""The lines below a verdict's sentence: cause, evidence, cure and command."""

from imagenet_opt.doctor.causes.cause import CAUSES
from imagenet_opt.doctor.diagnosis import STAGES, Diagnosis
from imagenet_opt.doctor.evidence import Evidence, evidence_of
from imagenet_opt.doctor.verdict import MUCH_UNEXPLAINED, is_judged, meaning

AGREES = 1.1
"""A run faster than this many times its slowest stage contradicts its stages."""


def explanation(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(label, text) of each line."""
    if not is_judged(diagnosis):
        return []
    lines = [("cause", meaning(diagnosis))]
    fired = next((one for one in diagnosis.findings if one.fired and one.rule == diagnosis.cause), None)
    if fired is None:
        return lines
    lines += [("evidence", fired.evidence), ("cure", fired.remedy)]
    typed = (" ".join(fired.overrides), *fired.commands)
    lines += [("command" if number == 0 else "", text) for number, text in enumerate(filter(None, typed))]
    return [(label, text) for label, text in lines if text]


def gap(diagnosis: Diagnosis) -> str | None:
    """The share of the expected rate that the run does not reach, as a sentence; None without a run."""
    if diagnosis.unexplained is None:
        return None
    says = f"{diagnosis.unexplained:.0%} of what the stages alone allow"
    cause = CAUSES.get(diagnosis.cause)
    if diagnosis.unexplained > MUCH_UNEXPLAINED and cause is not None and cause.shows_beside_stages:
        says += "; this cause shows in the full run only"
    return says


def least_stage(diagnosis: Diagnosis) -> str | None:
    """The full run beside the slowest of its stages, with files in the same state; None if one was not measured."""
    evidence = evidence_of(diagnosis)
    least = min(_parts(evidence), key=lambda name: evidence.ceilings[name].images_per_second, default=None)
    if least is None or not is_judged(diagnosis):
        return None
    rate, where = evidence.ceilings[least].images_per_second, "on storage" if evidence.is_cold else "in memory"
    says = f"With files {where} the full run gives {diagnosis.measured:,.0f} images/s"
    beside = f"{STAGES[least]} gives {rate:,.0f} images/s"
    if diagnosis.measured > AGREES * rate:
        return f"{says}, more than a stage of it did alone: {beside}. Something changed between the two measurements."
    return f"{says}; the least of its stages, {beside}."


def _parts(evidence: Evidence) -> list[str]:
    names = ("gpu", "gpu_beside_loader", evidence.copy_stage, "decode_all", f"loader_{evidence.state}")
    return [name for name in names if name in evidence.ceilings]
