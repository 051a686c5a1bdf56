"""From evidence to a verdict: which rule fires, what comes next, and one sentence that says it."""

from dataclasses import fields

from imagenet_opt.measure.diagnosis import CAUSES, Diagnosis, Measurements, Step
from imagenet_opt.measure.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.measure.gains import gains_of_environment, most_gain
from imagenet_opt.measure.rules import RULES, look
from imagenet_opt.measure.symptoms import is_lazy_at_first

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
BESIDE_STAGES = ("checkpoint_stall", "slow_logging", "slow_callback", "host_sync", "small_prefetch")
"""Causes that no stage has alone: they show in what the run gives less than its stages."""
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
        sentence=f"{HEADS[cause]}: {_says(seen, cause, gain)}.",
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
    device = f"the simulated {seen.simulated}" if seen.simulated else "the GPU" if seen.fact("has_gpu") else "the CPU"
    if cause == "healthy":
        return f"{device} computes {seen.busy:.0%} of the time, {seen.measured:.0f} img/s"
    if cause == "unexplained":
        return f"{seen.measured:.0f} of the {seen.expected:.0f} img/s that the stages alone allow"
    if cause == "lazy_mount" and is_lazy_at_first(seen):
        return f"about {rate_in_trouble(seen):.0f} img/s in the first epoch, {seen.measured:.0f} in later ones"
    if gain is None:
        return f"{seen.measured:.0f} img/s, and {device} alone takes {seen.gpu:.0f}"
    return f"{seen.measured:.0f} of a possible {gain * seen.measured:.0f} img/s"
