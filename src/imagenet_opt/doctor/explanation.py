"""The lines below a verdict: cause, evidence, cure and command."""

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
    fired = next((finding for finding in diagnosis.findings if finding.fired and finding.rule == diagnosis.cause), None)
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
    sentence = f"{diagnosis.unexplained:.0%} of the rate that the stages alone allow"
    cause = CAUSES.get(diagnosis.cause)
    if diagnosis.unexplained > MUCH_UNEXPLAINED and cause is not None and cause.shows_beside_stages:
        sentence += "; this cause appears only in the full run"
    return sentence


def least_stage(diagnosis: Diagnosis) -> str | None:
    """A sentence that compares the full run with its slowest stage, files in the same state; None if not measured."""
    evidence = evidence_of(diagnosis)
    least = min(_parts(evidence), key=lambda name: evidence.ceilings[name].images_per_second, default=None)
    if least is None or not is_judged(diagnosis):
        return None
    rate, where = evidence.ceilings[least].images_per_second, "on storage" if evidence.is_cold else "in memory"
    sentence = f"With files {where} the full run reaches {diagnosis.measured:,.0f} images/s"
    stage = f"'{STAGES[least]}' reaches {rate:,.0f} images/s"
    if diagnosis.measured > AGREES * rate:
        return f"{sentence}, but its stage {stage} alone. Something changed between the two measurements."
    return f"{sentence}; its slowest stage {stage}."


def _parts(evidence: Evidence) -> list[str]:
    names = ("gpu", "gpu_beside_loader", evidence.copy_stage, "decode_all", f"loader_{evidence.state}")
    return [name for name in names if name in evidence.ceilings]
