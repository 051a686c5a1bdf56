"""From evidence to a verdict: which rule fires, what comes next, and one sentence that says it."""

from collections.abc import Callable, Mapping
from dataclasses import fields

from imagenet_opt.doctor.causes.cause import CAUSES
from imagenet_opt.doctor.causes.cpus import busy_neighbour, contention, few_cpus, few_workers, slow_decode
from imagenet_opt.doctor.causes.device import launch_bound, slow_copy, slow_gpu
from imagenet_opt.doctor.causes.loader import lazy_mount, small_prefetch, storage_bandwidth, storage_latency
from imagenet_opt.doctor.causes.main_process import checkpoint_stall, host_sync, slow_callback, slow_logging
from imagenet_opt.doctor.diagnosis import STAGES, Diagnosis, Finding, Measurements, Step
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.doctor.gains import gains_of_environment, most_gain
from imagenet_opt.doctor.symptoms import is_lazy_at_first

Rule = Callable[[Evidence], Finding]

NEEDS = ("gpu", "gpu_beside_loader", "loader", "decode_all", "full")
"""What each verdict rests on, beside what its rule needs."""
_READS = (*NEEDS, "storage")
RULES: Mapping[Rule, tuple[str, ...]] = {
    slow_gpu: ("gpu",),
    checkpoint_stall: NEEDS,
    slow_logging: NEEDS,
    slow_callback: NEEDS,
    host_sync: NEEDS,
    lazy_mount: _READS,
    storage_bandwidth: _READS,
    storage_latency: _READS,
    small_prefetch: _READS,
    slow_copy: NEEDS,
    busy_neighbour: _READS,
    few_workers: _READS,
    few_cpus: _READS,
    slow_decode: _READS,
    launch_bound: _READS,
    contention: _READS,
}
"""Rule -> the measurements without which it cannot be looked at, as `Evidence.lacks` knows them."""


def look(rule: Rule, seen: Evidence) -> Finding:
    """What the rule finds. It has not fired where a measurement that it needs is missing: that is `None`."""
    if missing := seen.lacks(RULES[rule]):
        names = ", ".join(STAGES.get(name, name) for name in missing)
        return Finding(rule.__name__, None, f"not measured: {names}")
    return rule(seen)


MUCH_UNEXPLAINED = 0.1
"""Share of what is expected, from which the explanation tells that it is missing."""


def judge(seen: Evidence) -> Diagnosis:
    """The first rule that fires is the cause; without one the run is healthy, or its gap unexplained.

    Raises KeyError where something of `NEEDS` is missing.
    """
    findings = tuple(look(rule, seen) for rule in RULES)
    fired = next((finding for finding in findings if finding.fired), None)
    cause = fired.rule if fired else "healthy" if seen.busy >= BUSY_ENOUGH else "unexplained"
    gain = fired.gain if fired else _gain_without_cause(seen, cause)
    next_stage = _next_stage(seen, gain, cause) if gain is not None else None
    shared = {field.name: getattr(seen, field.name) for field in fields(Measurements)}
    return Diagnosis(
        sentence=f"{CAUSES[cause].head}: {_says(seen, cause, gain)}.",
        cause=cause,
        expected=seen.expected,
        measured=seen.measured,
        next_stage=next_stage,
        next_gain=gain,
        waterfall=_waterfall(seen),
        findings=(*findings, *gains_of_environment(seen)),
        **shared,
    )


def _gain_without_cause(seen: Evidence, cause: str) -> float:
    """Of a healthy run: with a GPU that takes all; of an unexplained one: if it gave what the stages allow."""
    return max(1.0, (min(seen.supply, seen.copy) if cause == "healthy" else seen.expected) / seen.measured)


def _waterfall(seen: Evidence) -> tuple[Step, ...]:
    """Differences between the experiments, so that the parts add up to the full run."""
    names = {
        "gpu": "GPU, batch resident",
        "gpu_beside_loader": "contention with the loader",
        "full_warm": "data, copy and loop",
        "full_cold": "reading from storage",
    }
    steps, before = [], 0.0
    for stage, name in names.items():
        if stage in seen.ceilings and (stage != "full_cold" or seen.is_cold):
            seconds = seen.batch_size / seen.ceilings[stage].images_per_second
            steps.append(Step(name, seconds - before))
            before = seconds
    return (*steps, Step("full run", before))


def _next_stage(seen: Evidence, gain: float, cause: str) -> str:
    """What is the limit at `gain` times the present rate: the lowest ceiling that is not below it.

    Where decoding and training together take all CPUs, that is named by what takes most of them.
    """
    rate = gain * rate_in_trouble(seen)
    of_cpus = cause in ("busy_neighbour", "few_workers", "few_cpus") and gain < 0.97 * most_gain(seen)
    if of_cpus or abs(seen.cpu_budget - rate) < 0.03 * rate:
        return "decode_all"
    rates = {name: ceiling.images_per_second for name, ceiling in seen.ceilings.items()}
    limits = [seen.copy_stage, "decode_all", "loader_warm", *(("loader_cold", "storage_cold") if seen.is_cold else ())]
    limits += () if cause == "healthy" else ("gpu", "gpu_beside_loader")
    above = {name: rates[name] for name in limits if name in rates and rates[name] >= 0.97 * rate}
    return min(above, key=lambda name: above[name], default="decode_all")


def rate_in_trouble(seen: Evidence) -> float:
    """Images per second while the cause lasts: of the first epoch where that alone is slow, else of the run."""
    return (seen.first_epoch or seen.measured) if is_lazy_at_first(seen) else seen.measured


def _says(seen: Evidence, cause: str, gain: float | None) -> str:
    """What the run gives, against what."""
    device = f"the simulated {seen.simulated}" if seen.simulated else "the GPU" if seen.facts.has_gpu else "the CPU"
    if cause == "healthy":
        return f"{device} computes {seen.busy:.0%} of the time, {seen.measured:.0f} img/s"
    if cause == "unexplained":
        return f"{seen.measured:.0f} of the {seen.expected:.0f} img/s that the stages alone allow"
    if cause == "lazy_mount" and is_lazy_at_first(seen):
        return f"about {rate_in_trouble(seen):.0f} img/s in the first epoch, {seen.measured:.0f} in later ones"
    if gain is None:
        return f"{seen.measured:.0f} img/s, and {device} alone takes {seen.gpu:.0f}"
    return f"{seen.measured:.0f} of a possible {gain * seen.measured:.0f} img/s"


def conclude(seen: Evidence) -> Diagnosis:
    """The verdict; without what it rests on a diagnosis that is none (`is_judged`), with all that was measured.

    Raises KeyError where something is missing though nothing failed.
    """
    missing = seen.lacks(NEEDS)
    if not missing:
        return judge(seen)
    if seen.facts.not_measured is None:
        raise KeyError(f"no {', '.join(missing)}, though no experiment failed")
    shared = {field.name: getattr(seen, field.name) for field in fields(Measurements)}
    rates = [ceiling.images_per_second for ceiling in seen.ceilings.values()]
    return Diagnosis(
        sentence=f"Not judged: {seen.facts.not_measured}",
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
    if not is_judged(found):
        return "not judged"
    return CAUSES[found.cause].meaning if found.cause in CAUSES else found.cause
