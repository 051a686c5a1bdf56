"""Explains a verdict: cause, evidence, remedy and command; the unexplained gap; the slowest stage."""

from imagenet_opt.doctor.confidence import AGREES
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.evidence import evidence_of
from imagenet_opt.doctor.verdict import CAUSES, is_judged, meaning

MUCH_UNEXPLAINED = 0.1
"""The gap has an explanation if it exceeds this share of the expected rate."""


def explanation(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(label, text) of each line."""
    if not is_judged(diagnosis):
        return []
    lines = [("cause", meaning(diagnosis))]
    for finding in diagnosis.findings:
        if finding.fired and finding.rule == diagnosis.cause:
            lines += [("evidence", finding.evidence), ("remedy", finding.remedy)]
            commands = [" ".join(finding.overrides), *finding.commands] if finding.overrides else finding.commands
            lines += [("" if number else "command", command) for number, command in enumerate(commands)]
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
    stages = ("gpu", "gpu_beside_loader", evidence.copy_stage, "decode_all", evidence.stage("loader"))
    measured = [stage for stage in stages if stage in evidence.ceilings]
    if not measured or not is_judged(diagnosis):
        return None
    least = min(measured, key=evidence.rate)
    is_remote = evidence.facts.cache_room is not None
    warm = "samples in the local cache" if is_remote else "files in memory"
    where = "files on storage" if evidence.is_cold else warm
    sentence = f"With {where} the full run reaches {diagnosis.measured:,.0f} images/s"
    stage = f"'{diagnosis.measurements.stages[least]}' reaches {evidence.rate(least):,.0f} images/s"
    if diagnosis.measured > AGREES * evidence.rate(least):
        return f"{sentence}, but its stage {stage} alone. Something changed between the two measurements."
    return f"{sentence}; its slowest stage {stage}."
