"""From evidence to a verdict: which rule fires, what comes next, and one sentence that says it."""

from dataclasses import fields

from imagenet_opt.measure.diagnosis import CAUSES, STAGES, Diagnosis, Finding, Measurements, Step
from imagenet_opt.measure.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.measure.rules import RULES

HEADS = {
    "healthy": "Healthy",
    "slow_gpu": "Slow GPU",
    "storage_latency": "Storage-bound",
    "storage_bandwidth": "Storage-bound",
    "lazy_mount": "Storage-bound",
    "few_workers": "Loader-bound",
    "few_cpus": "CPU-bound",
    "slow_decode": "CPU-bound",
    "busy_neighbour": "CPU-bound",
    "small_prefetch": "Loader-bound",
    "host_sync": "Host sync",
    "launch_bound": "Launch-bound",
    "contention": "CPU-bound",
    "slow_logging": "Main process",
    "checkpoint_stall": "Main process",
    "slow_callback": "Main process",
    "slow_copy": "Copy-bound",
    "unexplained": "Unexplained",
}
assert HEADS.keys() == CAUSES.keys()


def judge(seen: Evidence) -> Diagnosis:
    """The first rule that fires is the cause; without one the run is healthy, or its gap unexplained."""
    findings = tuple(rule(seen) for rule in RULES)
    fired = next((finding for finding in findings if finding.fired), None)
    cause = fired.rule if fired else "healthy" if seen.busy >= BUSY_ENOUGH else "unexplained"
    gain = fired.gain if fired else None
    next_stage = _next_stage(seen, gain) if gain is not None else None
    shared = {field.name: getattr(seen, field.name) for field in fields(Measurements)}
    return Diagnosis(
        sentence=_sentence(seen, cause, fired, gain, next_stage),
        cause=cause,
        expected=seen.expected,
        measured=seen.measured,
        next_stage=next_stage,
        next_gain=gain,
        waterfall=_waterfall(seen),
        findings=(*findings, *seen.environment),
        **shared,
    )


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


def _next_stage(seen: Evidence, gain: float) -> str:
    """What is the limit at `gain` times the present rate: the lowest ceiling that is not below it."""
    rates = {name: ceiling.images_per_second for name, ceiling in seen.ceilings.items()}
    limits = ("gpu", "gpu_beside_loader", "copy", "decode_all", "loader_warm")
    above = {name: rates[name] for name in limits if name in rates and rates[name] >= 0.97 * gain * seen.measured}
    return min(above, key=lambda name: above[name], default="decode_all")


def _sentence(seen: Evidence, cause: str, fired: Finding | None, gain: float | None, next_stage: str | None) -> str:
    device = f"the simulated {seen.simulated}" if seen.simulated else "the GPU" if seen.fact("has_gpu") else "the CPU"
    if fired is None:
        says = f"{HEADS[cause]}: {device} computes {seen.busy:.0%} of the time, {seen.measured:.0f} img/s"
        if cause == "healthy":
            return f"{says}; it is the limit."
        return f"{says} of the {seen.expected:.0f} that the stages alone allow; no single experiment explains the rest."
    says = (
        f"{HEADS[cause]}: {fired.evidence}; {seen.measured:.0f} of a possible {(gain or 1) * seen.measured:.0f} img/s"
    )
    do = "; or ".join([fired.remedy, *(f"`{command}`" for command in fired.commands)])
    options = f" ({' '.join(fired.overrides)})" if fired.overrides else ""
    after = f" The next limit: {STAGES[next_stage]}." if next_stage else ""
    return f"{says}. {do[:1].upper()}{do[1:]}{options}.{after}"
