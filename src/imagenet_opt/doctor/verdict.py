"""Judges evidence: which rule fires, what the next limit is, and one sentence as the verdict."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from imagenet_opt.doctor.causes.cause import CAUSES
from imagenet_opt.doctor.causes.cpus import busy_neighbour, contention, few_cpus, few_workers, slow_decode
from imagenet_opt.doctor.causes.device import launch_bound, slow_copy, slow_gpu
from imagenet_opt.doctor.causes.loader import lazy_mount, small_prefetch, storage_bandwidth, storage_latency
from imagenet_opt.doctor.causes.main_process import checkpoint_stall, host_sync, slow_callback, slow_logging
from imagenet_opt.doctor.diagnosis import STAGES, Diagnosis, Finding, Step
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.doctor.gains import gains_of_environment, most_gain
from imagenet_opt.doctor.symptoms import is_lazy_at_first

NEEDS = ("gpu", "gpu_beside_loader", "loader", "decode_all", "full")
"""Ceilings that every verdict needs, named in `Evidence.lacks`."""
_READS = (*NEEDS, "storage")


@dataclass(frozen=True)
class Rule:
    """finding: function that checks the rule without regard to other rules; its name is the rule's.

    needs: ceilings without which the rule cannot be checked, named as in `Evidence.lacks`. unless: earlier rules; if
    one of them fired, this rule does not.
    """

    finding: Callable[[Evidence], Finding]
    needs: tuple[str, ...]
    unless: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.finding.__name__

    def look(self, evidence: Evidence, fired: Collection[str] = ()) -> Finding:
        """Check the rule. fired: names of earlier rules that fired. `Finding.fired` is None if a needed ceiling is
        missing."""
        if missing := evidence.lacks(self.needs):
            return Finding(self.name, None, f"not measured: {', '.join(STAGES[name] for name in missing)}")
        finding = self.finding(evidence)
        is_excluded = finding.fired and not set(self.unless).isdisjoint(fired)
        return replace(finding, fired=False, gain=None) if is_excluded else finding


_MAIN_PROCESS = ("checkpoint_stall", "slow_logging", "host_sync", "slow_callback")
RULES = (
    Rule(slow_gpu, ("gpu",)),
    Rule(checkpoint_stall, NEEDS),
    Rule(slow_logging, NEEDS),
    Rule(host_sync, NEEDS, unless=("checkpoint_stall", "slow_logging")),
    Rule(slow_callback, NEEDS, unless=("host_sync",)),  # else the callback waits for the GPU
    Rule(lazy_mount, _READS),
    Rule(storage_bandwidth, _READS),
    Rule(storage_latency, _READS),
    Rule(small_prefetch, _READS),
    Rule(slow_copy, NEEDS),
    Rule(busy_neighbour, _READS, unless=(*_MAIN_PROCESS, "small_prefetch")),
    Rule(few_workers, _READS, unless=("busy_neighbour",)),
    Rule(few_cpus, _READS, unless=("busy_neighbour", "few_workers")),
    Rule(slow_decode, _READS, unless=("busy_neighbour", "few_workers", "few_cpus")),
    Rule(launch_bound, _READS, unless=("few_cpus",)),
    Rule(contention, _READS, unless=("busy_neighbour", "few_workers", "few_cpus", "slow_decode")),
)
"""The first rule that fires names the cause."""


def findings_of(evidence: Evidence) -> tuple[Finding, ...]:
    """The finding of each rule, in the order of `RULES`."""
    findings: list[Finding] = []
    for rule in RULES:
        findings.append(rule.look(evidence, {finding.rule for finding in findings if finding.fired}))
    return tuple(findings)


MUCH_UNEXPLAINED = 0.1
"""The explanation mentions a missing share of the expected rate above this."""


def judge(evidence: Evidence) -> Diagnosis:
    """The diagnosis: the first rule that fires is the cause; without one the run is healthy, or its gap unexplained.

    Raises KeyError if a ceiling of `NEEDS` is missing.
    """
    findings = findings_of(evidence)
    fired = next((finding for finding in findings if finding.fired), None)
    cause = fired.rule if fired else "healthy" if evidence.busy_share >= BUSY_ENOUGH else "unexplained"
    gain = fired.gain if fired else _gain_without_cause(evidence, cause)
    next_stage = _next_stage(evidence, gain, cause) if gain is not None else None
    return Diagnosis(
        measurements=evidence.measurements,
        sentence=f"{CAUSES[cause].head}: {_comparison(evidence, cause, gain)}.",
        cause=cause,
        expected=evidence.expected_rate,
        measured=evidence.measured_rate,
        next_stage=next_stage,
        next_gain=gain,
        waterfall=_waterfall(evidence),
        findings=(*findings, *gains_of_environment(evidence)),
    )


def _gain_without_cause(evidence: Evidence, cause: str) -> float:
    """For a healthy run: the gain with a faster GPU. For an unexplained run: the gain if it reached the rate of its
    stages."""
    return max(
        1.0,
        (min(evidence.supply_rate, evidence.copy_rate) if cause == "healthy" else evidence.expected_rate)
        / evidence.measured_rate,
    )


def _waterfall(evidence: Evidence) -> tuple[Step, ...]:
    """Differences between experiments; they add up to a step of the full run."""
    names = {
        "gpu": "GPU, batch resident",
        "gpu_beside_loader": "contention with the loader",
        "full_warm": "data, copy and loop",
        "full_cold": "reading from storage",
    }
    steps, before = [], 0.0
    for stage, name in names.items():
        if stage in evidence.ceilings and (stage != "full_cold" or evidence.is_cold):
            seconds = evidence.measurements.batch_size / evidence.ceilings[stage].images_per_second
            steps.append(Step(name, seconds - before))
            before = seconds
    return (*steps, Step("full run", before))


def _next_stage(evidence: Evidence, gain: float, cause: str) -> str:
    """The limit at `gain` times the present rate: the lowest ceiling above that rate.

    If decoding and training together take all CPUs, the limit is decoding, which takes most of them.
    """
    rate = gain * rate_in_trouble(evidence)
    of_cpus = cause in ("busy_neighbour", "few_workers", "few_cpus") and gain < 0.97 * most_gain(evidence)
    if of_cpus or abs(evidence.cpu_rate - rate) < 0.03 * rate:
        return "decode_all"
    rates = {name: ceiling.images_per_second for name, ceiling in evidence.ceilings.items()}
    limits = [
        evidence.copy_stage,
        "decode_all",
        "loader_warm",
        *(("loader_cold", "storage_cold") if evidence.is_cold else ()),
    ]
    limits += () if cause == "healthy" else ("gpu", "gpu_beside_loader")
    above = {name: rates[name] for name in limits if name in rates and rates[name] >= 0.97 * rate}
    return min(above, key=lambda name: above[name], default="decode_all")


def rate_in_trouble(evidence: Evidence) -> float:
    """Images per second while the cause lasts: of the first epoch if only that is slow, else of the run."""
    return (
        (evidence.first_epoch_rate or evidence.measured_rate) if is_lazy_at_first(evidence) else evidence.measured_rate
    )


def _comparison(evidence: Evidence, cause: str, gain: float | None) -> str:
    """The rate of the run, and the rate to which it is compared."""
    device = (
        f"the simulated {evidence.measurements.simulated}"
        if evidence.measurements.simulated
        else "the GPU"
        if evidence.facts.has_gpu
        else "the CPU"
    )
    if cause == "healthy":
        return f"{device} computes {evidence.busy_share:.0%} of the time, {evidence.measured_rate:.0f} img/s"
    if cause == "unexplained":
        return f"{evidence.measured_rate:.0f} of the {evidence.expected_rate:.0f} img/s that the stages alone allow"
    if cause == "lazy_mount" and is_lazy_at_first(evidence):
        first, later = rate_in_trouble(evidence), evidence.measured_rate
        return f"about {first:.0f} img/s in the first epoch, {later:.0f} in later ones"
    if gain is None:
        return f"{evidence.measured_rate:.0f} img/s, and {device} alone reaches {evidence.gpu_rate:.0f}"
    return f"{evidence.measured_rate:.0f} of a possible {gain * evidence.measured_rate:.0f} img/s"


def conclude(evidence: Evidence) -> Diagnosis:
    """The verdict; if a ceiling of `NEEDS` is missing, a diagnosis without a verdict that keeps all measurements.

    Raises KeyError if a ceiling is missing though no experiment failed.
    """
    missing = evidence.lacks(NEEDS)
    if not missing:
        return judge(evidence)
    if evidence.facts.not_measured is None:
        raise KeyError(f"no {', '.join(missing)}, though no experiment failed")
    rates = [ceiling.images_per_second for ceiling in evidence.ceilings.values()]
    return Diagnosis(
        measurements=evidence.measurements,
        sentence=f"Not judged: {evidence.facts.not_measured}",
        cause="unexplained",
        expected=min(rates, default=0.0),
        measured=0.0,
        next_stage=None,
        next_gain=None,
        waterfall=(),
        findings=evidence.environment,
    )


def is_judged(diagnosis: Diagnosis) -> bool:
    return bool(diagnosis.measured)


def meaning(diagnosis: Diagnosis) -> str:
    """Meaning of the verdict's cause."""
    if not is_judged(diagnosis):
        return "not judged"
    return CAUSES[diagnosis.cause].meaning if diagnosis.cause in CAUSES else diagnosis.cause
