"""Judges evidence: the rules, the cause, the gain once the cause is fixed, and one sentence."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from imagenet_opt.doctor.causes.cache import cache_too_small, cold_cache, slow_cache, throttled
from imagenet_opt.doctor.causes.cpus import busy_neighbour, contention, few_cpus, few_workers, slow_decode
from imagenet_opt.doctor.causes.device import launch_bound, slow_copy, slow_gpu
from imagenet_opt.doctor.causes.loader import lazy_mount, small_prefetch, storage_bandwidth, storage_latency
from imagenet_opt.doctor.causes.main_process import checkpoint_stall, host_sync, slow_callback, slow_logging
from imagenet_opt.doctor.diagnosis import Diagnosis, Finding, Step
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.doctor.gains import gains_of_environment, most_gain
from imagenet_opt.doctor.symptoms import is_cache_too_small, is_cold_cache, is_lazy_at_first


@dataclass(frozen=True)
class Cause:
    """head: first words of the verdict's sentence. meaning: the cause in a few words, for the line below the sentence.
    shows_beside_stages: whether the cause appears only in the full run, which is then slower than its stages allow."""

    head: str
    meaning: str
    shows_beside_stages: bool = False


CAUSES = {
    "healthy": Cause("Healthy", "the device is the limit"),
    "slow_gpu": Cause("Slow GPU", "the GPU is slower than other GPUs of its kind"),
    "throttled": Cause("Storage-bound", "the service refuses requests, because it gets too many"),
    "cold_cache": Cause("Storage-bound", "the local cache is not filled yet"),
    "cache_too_small": Cause("Storage-bound", "the local cache has too little room for the data"),
    "slow_cache": Cause("Storage-bound", "the disk of the local cache is slow"),
    "storage_latency": Cause("Storage-bound", "storage answers late"),
    "storage_bandwidth": Cause("Storage-bound", "storage gives too few MB/s"),
    "lazy_mount": Cause("Storage-bound", "the mount fetches each file from a remote store at first touch"),
    "few_workers": Cause("Loader-bound", "fewer loader workers than CPUs"),
    "few_cpus": Cause("CPU-bound", "the job may use only some of the CPUs"),
    "slow_decode": Cause("CPU-bound", "decoding takes the CPUs"),
    "busy_neighbour": Cause("CPU-bound", "other processes take the CPUs"),
    "small_prefetch": Cause("Loader-bound", "too few batches are prepared ahead", shows_beside_stages=True),
    "host_sync": Cause("Host sync", "the host waits for the GPU in each step", shows_beside_stages=True),
    "launch_bound": Cause("Launch-bound", "the host launches kernels more slowly than the GPU computes them"),
    "contention": Cause("CPU-bound", "the loader takes CPU time that the training process needs"),
    "slow_logging": Cause("Main process", "logging delays the step", shows_beside_stages=True),
    "checkpoint_stall": Cause("Main process", "checkpoints delay the step", shows_beside_stages=True),
    "slow_callback": Cause("Main process", "a callback delays the step", shows_beside_stages=True),
    "slow_copy": Cause("Copy-bound", "the copy to the GPU is the limit"),
    "unexplained": Cause("Unexplained", "no single experiment explains the gap"),
}
"""Key of each verdict -> its text."""

NEEDS = ("gpu", "gpu_beside_loader", "loader", "decode_all", "full")
"""Ceilings that every verdict needs, named as in `Evidence.stage`."""
_READS = (*NEEDS, "storage")


@dataclass(frozen=True)
class Rule:
    """finding: function that checks the rule alone; its name is the rule's name. needs: stages whose rates the rule
    reads, named as in `Evidence.stage`. unless: the rule does not fire if one of these earlier rules fired."""

    finding: Callable[[Evidence], Finding]
    needs: tuple[str, ...]
    unless: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.finding.__name__

    def look(self, evidence: Evidence, fired: Collection[str] = ()) -> Finding:
        """Check the rule. fired: earlier rules that fired. If a needed ceiling is missing, `Finding.fired` is None."""
        if missing := evidence.lacks(self.needs):
            names = map(evidence.measurements.stages.__getitem__, missing)
            return Finding(self.name, None, f"not measured: {', '.join(names)}")
        finding = self.finding(evidence)
        is_excluded = finding.fired and not set(self.unless).isdisjoint(fired)
        return replace(finding, fired=False, gain=None) if is_excluded else finding


_OF_URLS = ("throttled", "cold_cache", "cache_too_small", "slow_cache")
_MAIN_PROCESS = ("checkpoint_stall", "slow_logging", "host_sync", "slow_callback")
RULES = (
    Rule(slow_gpu, ("gpu",)),
    Rule(checkpoint_stall, NEEDS),
    Rule(slow_logging, NEEDS),
    Rule(host_sync, NEEDS, unless=("checkpoint_stall", "slow_logging")),
    Rule(slow_callback, NEEDS, unless=("host_sync",)),  # a callback that waits for the GPU is slow too
    Rule(throttled, _READS),
    Rule(cache_too_small, _READS, unless=("throttled",)),
    Rule(cold_cache, _READS, unless=("throttled", "cache_too_small")),
    Rule(slow_cache, _READS),
    Rule(lazy_mount, _READS),
    Rule(storage_bandwidth, _READS, unless=_OF_URLS),
    Rule(storage_latency, _READS, unless=_OF_URLS),
    Rule(small_prefetch, _READS),
    Rule(slow_copy, NEEDS),
    Rule(busy_neighbour, _READS, unless=(*_MAIN_PROCESS, "small_prefetch")),
    Rule(few_workers, _READS, unless=("busy_neighbour",)),
    Rule(few_cpus, _READS, unless=("busy_neighbour", "few_workers")),
    Rule(slow_decode, _READS, unless=("busy_neighbour", "few_workers", "few_cpus")),
    Rule(launch_bound, _READS, unless=("few_cpus",)),
    Rule(contention, _READS, unless=("busy_neighbour", "few_workers", "few_cpus", "slow_decode")),
)
"""In order: the first rule that fires names the cause."""


def judge(evidence: Evidence) -> Diagnosis:
    """The first rule that fires is the cause; if none fires, the run is healthy, or its gap is unexplained.

    Raises KeyError if a ceiling of `NEEDS` is missing.
    """
    findings: list[Finding] = []
    for rule in RULES:
        findings.append(rule.look(evidence, {finding.rule for finding in findings if finding.fired}))
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
    """Gain of a healthy run with a faster GPU, or of an unexplained run that reaches the rate of its stages."""
    rate = min(evidence.supply_rate, evidence.copy_rate) if cause == "healthy" else evidence.expected_rate
    return max(1.0, rate / evidence.measured_rate)


def _waterfall(evidence: Evidence) -> tuple[Step, ...]:
    """Differences between experiments; they add up to a step of the full run."""
    names = {
        "gpu": evidence.measurements.stages["gpu"],
        "gpu_beside_loader": "contention with the loader",
        "full_warm": "data, copy and loop",
        "full_cold": "reading from storage",
    }
    steps, before = [], 0.0
    for stage, name in names.items():
        if stage in evidence.ceilings and (stage != "full_cold" or evidence.is_cold):
            seconds = evidence.measurements.batch_size / evidence.rate(stage)
            steps.append(Step(name, seconds - before))
            before = seconds
    return (*steps, Step("full run", before))


def _next_stage(evidence: Evidence, gain: float, cause: str) -> str:
    """The lowest ceiling above `gain` times the present rate. If decoding and training together use all CPUs, decoding
    counts as the limit, since it uses most of them."""
    rate = gain * rate_in_trouble(evidence)
    lacks_cpus = cause in ("busy_neighbour", "few_workers", "few_cpus") and gain < 0.97 * most_gain(evidence)
    if lacks_cpus or abs(evidence.cpu_rate - rate) < 0.03 * rate:
        return "decode_all"
    limits = [evidence.copy_stage, "decode_all", "loader_warm"]
    is_read = evidence.is_cold and cause not in ("cold_cache", "cache_too_small")  # else from the local cache
    limits += ["loader_cold", "storage_cold"] if is_read else []
    limits += ["gpu", "gpu_beside_loader"] if cause != "healthy" else []
    rates = {name: evidence.rate(name) for name in limits if name in evidence.ceilings}
    above = {name: limit for name, limit in rates.items() if limit >= 0.97 * rate}
    return min(above, key=lambda name: above[name], default="decode_all")


def rate_in_trouble(evidence: Evidence) -> float:
    """Images per second while the cause lasts: of the first epoch if only the first epoch is slow, of later epochs if
    the local cache is too small, else of the run."""
    if is_cache_too_small(evidence):
        return evidence.later_rate
    if is_cold_cache(evidence):
        return evidence.present_rate
    first = evidence.first_epoch_rate if is_lazy_at_first(evidence) else None
    return first or evidence.measured_rate


def _comparison(evidence: Evidence, cause: str, gain: float | None) -> str:
    """The rate of the run, and the rate to which it is compared."""
    measured = evidence.measured_rate
    if cause == "healthy":
        return f"{evidence.device} computes {evidence.busy_share:.0%} of the time, {measured:.0f} img/s"
    if cause == "unexplained":
        return f"{measured:.0f} of the {evidence.expected_rate:.0f} img/s that the stages alone allow"
    if cause == "lazy_mount" and is_lazy_at_first(evidence):
        return f"about {rate_in_trouble(evidence):.0f} img/s in the first epoch, {measured:.0f} in later ones"
    present = rate_in_trouble(evidence)
    if cause == "cold_cache":
        return f"about {present:.0f} img/s in the first epoch, {evidence.later_rate:.0f} in later ones"
    if cause == "cache_too_small":
        return f"about {present:.0f} img/s in each later epoch, of a possible {evidence.whole_rate:.0f}"
    if gain is None:
        return f"{measured:.0f} img/s, and {evidence.device} alone reaches {evidence.rate('gpu'):.0f}"
    return f"{measured:.0f} of a possible {gain * measured:.0f} img/s"


def conclude(evidence: Evidence) -> Diagnosis:
    """`judge`, or a diagnosis without a verdict if a ceiling of `NEEDS` is missing.

    Raises KeyError if a ceiling is missing though no experiment failed.
    """
    if not (missing := evidence.lacks(NEEDS)):
        return judge(evidence)
    if evidence.facts.not_measured is None:
        raise KeyError(f"no {', '.join(missing)}, though no experiment failed")
    return Diagnosis(
        measurements=evidence.measurements,
        sentence=f"Not judged: {evidence.facts.not_measured}",
        cause="unexplained",
        expected=min(map(evidence.rate, evidence.ceilings), default=0.0),
        measured=0.0,
        next_stage=None,
        next_gain=None,
        waterfall=(),
        findings=evidence.environment,
    )


def is_judged(diagnosis: Diagnosis) -> bool:
    return bool(diagnosis.measured)


def meaning(diagnosis: Diagnosis) -> str:
    """The cause in a few words."""
    if not is_judged(diagnosis):
        return "not judged"
    return CAUSES[diagnosis.cause].meaning if diagnosis.cause in CAUSES else diagnosis.cause
