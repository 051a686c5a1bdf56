"""What follows a verdict's sentence: cause, evidence, cure and command, a line each."""

from imagenet_opt.doctor.causes.cause import CAUSES
from imagenet_opt.doctor.diagnosis import STAGES, Diagnosis
from imagenet_opt.doctor.evidence import Evidence, evidence_of
from imagenet_opt.doctor.verdict import MUCH_UNEXPLAINED, is_judged, meaning

AGREES = 1.1
"""A run that gives more than so many times the least of its stages does not agree with them."""


def explanation(found: Diagnosis) -> list[tuple[str, str]]:
    """(label, text) of each line."""
    if not is_judged(found):
        return []
    lines = [("cause", meaning(found))]
    fired = next((one for one in found.findings if one.fired and one.rule == found.cause), None)
    if fired is None:
        return lines
    lines += [("evidence", fired.evidence), ("cure", fired.remedy)]
    typed = (" ".join(fired.overrides), *fired.commands)
    lines += [("command" if number == 0 else "", text) for number, text in enumerate(filter(None, typed))]
    return [(label, text) for label, text in lines if text]


def gap(found: Diagnosis) -> str | None:
    """What the run gives less than its stages allow; None without a run."""
    if found.unexplained is None:
        return None
    says = f"{found.unexplained:.0%} of what the stages alone allow"
    cause = CAUSES.get(found.cause)
    if found.unexplained > MUCH_UNEXPLAINED and cause is not None and cause.shows_beside_stages:
        says += "; this cause shows in the full run only"
    return says


def least_stage(found: Diagnosis) -> str | None:
    """The full run beside the least of the stages that it is made of, in the state in which its files were. None where
    one of the two was not measured."""
    seen = evidence_of(found)
    least = min(_parts(seen), key=lambda name: seen.ceilings[name].images_per_second, default=None)
    if least is None or not is_judged(found):
        return None
    rate, where = seen.ceilings[least].images_per_second, "on storage" if seen.is_cold else "in memory"
    says = f"With files {where} the full run gives {found.measured:,.0f} images/s"
    beside = f"{STAGES[least]} gives {rate:,.0f} images/s"
    if found.measured > AGREES * rate:
        return f"{says}, more than a stage of it did alone: {beside}. Something changed between the two measurements."
    return f"{says}; the least of its stages, {beside}."


def _parts(seen: Evidence) -> list[str]:
    names = ("gpu", "gpu_beside_loader", seen.copy_stage, "decode_all", f"loader_{seen.state}")
    return [name for name in names if name in seen.ceilings]
