"""Judges evidence: the first rule that fires is the cause; one sentence, the gain once it is fixed, and the doubts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from imagenet_opt.doctor.causes import CAUSES
from imagenet_opt.doctor.environment import ENVIRONMENT
from imagenet_opt.doctor.evidence import AGREES, BUSY_ENOUGH, Evidence
from imagenet_opt.doctor.rule import Finding
from imagenet_opt.measure.stats.intervals import LEAST_COVERAGE

VERDICTS = {rule.name: rule.cause for rule in CAUSES} | {
    "healthy": "Healthy: the device is the limit",
    "unexplained": "Unexplained: no single experiment explains the gap",
}
"""Key of each verdict -> the first words of its sentence, and the cause in a few words."""
_OF_STORAGE = ("lazy_mount", "cold_cache", "storage_bandwidth", "storage_latency")
_WIDE = 0.2
"""A rate varies widely if its interval is wider than this share of its median."""
_SAME = 0.97
"""A limit below this share of a rate cannot have allowed that rate."""


@dataclass(frozen=True)
class Step:
    """A part of one step, in seconds; negative if the part made the step shorter."""

    name: str
    seconds: float


class Confidence(NamedTuple):
    """level: high without a doubt, medium with one doubt, else low. doubts: sentences without a full stop."""

    level: str
    doubts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The measurements and their verdict.

    sentence: the verdict. cause: a key of VERDICTS. expected, measured: images per second of the lowest ceiling, files
    in the state of the full run, and of the full run (0 if not measured). next_stage: the lowest ceiling once the cause
    is fixed. next_gain: rate after the fix divided by the measured rate; for a healthy run, the gain with a faster GPU.
    Both are None if not predictable. waterfall: parts of one step, which add up to the last item. findings: of the
    causes down to the one that fired, of the checks of the environment, and of failed experiments. trial: result of
    `doctor --apply`.
    """

    measurements: Evidence
    sentence: str
    cause: str
    expected: float
    measured: float
    next_stage: str | None
    next_gain: float | None
    waterfall: tuple[Step, ...]
    findings: tuple[Finding, ...]
    trial: Mapping[str, Any] | None = None

    @property
    def is_judged(self) -> bool:
        return bool(self.measured)

    @property
    def meaning(self) -> str:
        """The cause in a few words."""
        return VERDICTS.get(self.cause, self.cause).rpartition(": ")[2] if self.is_judged else "not judged"

    @property
    def efficiency(self) -> float:
        return self.measured / self.expected if self.expected else 0.0

    @property
    def unexplained(self) -> float | None:
        """Share of the expected rate that the run does not reach; None if no run was measured."""
        return max(0.0, 1 - self.efficiency) if self.measured else None

    @property
    def explanation(self) -> list[tuple[str, str]]:
        """(label, text) of each line: cause, evidence, remedy, commands."""
        if not self.is_judged:
            return []
        lines = [("cause", self.meaning)]
        for finding in self.findings:
            if finding.fired and finding.rule == self.cause:
                commands = [" ".join(finding.overrides), *finding.commands]
                lines += [("evidence", finding.evidence), ("remedy", finding.remedy)]
                lines += [("" if number else "command", text) for number, text in enumerate(filter(None, commands))]
        return [(label, text) for label, text in lines if text]

    @property
    def confidence(self) -> Confidence:
        """The confidence in the diagnosis; low if it has no verdict."""
        doubts = tuple(_doubts(self)) if self.is_judged else ("there is no verdict",)
        return Confidence(("high", "medium", "low")[min(len(doubts), 2)] if self.is_judged else "low", doubts)


def judge(evidence: Evidence) -> Diagnosis:
    """The first rule that fires is the cause; if none fires, the run is healthy, or its gap is unexplained. Without a
    verdict if a ceiling of `NEEDS` is missing, because an experiment failed."""
    others = [rule.look(evidence) for rule in ENVIRONMENT]
    others += [Finding(name, None, f"the experiment failed: {reason}") for name, reason in evidence.failed.items()]
    if evidence.lacks:
        return Diagnosis(
            measurements=evidence,
            sentence=f"Not judged: {evidence.not_measured}",
            cause="unexplained",
            expected=min((ceiling.images_per_second for ceiling in evidence.ceilings.values()), default=0.0),
            measured=0.0,
            next_stage=None,
            next_gain=None,
            waterfall=(),
            findings=tuple(others),
        )
    findings = _check_causes(evidence)
    is_idle = evidence.busy_share < BUSY_ENOUGH
    if is_idle and evidence.follows_stages and not findings[-1].fired:
        findings = _check_causes(evidence, slowest=_cause_of_slowest(evidence))
    fired = findings[-1] if findings[-1].fired else None
    cause = fired.rule if fired else "unexplained" if is_idle else "healthy"
    gain = fired.gain if fired else _gain_without_rule(evidence, cause)
    return Diagnosis(
        measurements=evidence,
        sentence=f"{VERDICTS[cause].partition(':')[0]}: {_comparison(evidence, cause, gain)}.",
        cause=cause,
        expected=evidence.expected_rate,
        measured=evidence.measured_rate,
        next_stage=None if gain is None else _next_stage(evidence, gain, cause),
        next_gain=gain,
        waterfall=_waterfall(evidence),
        findings=(*findings, *others),
    )


def _check_causes(evidence: Evidence, slowest: str = "") -> list[Finding]:
    """Findings down to the first that fires. slowest: the rule that applies although no `when` is true."""
    findings: list[Finding] = []
    for rule in CAUSES:
        findings.append(rule.look(evidence, applies=rule.name == slowest))
        if findings[-1].fired:
            break
    return findings


def _cause_of_slowest(evidence: Evidence) -> str:
    """The cause of the slowest stage: the run is as fast as this stage, by less than the rules ask for."""
    if evidence.supply_rate < evidence.fed_rate:
        return "slow_decode"  # reading would have been named
    return "slow_copy" if evidence.copy_rate <= evidence.fed_rate else "contention"


def _gain_without_rule(evidence: Evidence, cause: str) -> float:
    """Gain of a healthy run with a faster GPU, or of an unexplained run that reaches the rate of its stages."""
    rate = min(evidence.supply_rate, evidence.copy_rate) if cause == "healthy" else evidence.expected_rate
    return max(1.0, rate / evidence.measured_rate)


def _comparison(evidence: Evidence, cause: str, gain: float | None) -> str:
    """The rate of the run, and the rate to which it is compared."""
    measured, (first, later) = evidence.measured_rate, evidence.epochs
    if cause == "healthy":
        return f"{evidence.device} computes {evidence.busy_share:.0%} of the time, {measured:.0f} img/s"
    if cause == "unexplained":
        return f"{measured:.0f} of the {evidence.expected_rate:.0f} img/s that the stages alone allow"
    if cause == "cache_too_small":
        return f"about {later:.0f} img/s in each later epoch, of a possible {evidence.whole_rate:.0f}"
    if cause in _OF_STORAGE and evidence.is_slow_at_first:
        return f"about {first:.0f} img/s in the first epoch, {later:.0f} in later ones"
    if cause == "shared_gpu":
        return f"{measured:.0f} img/s beside other processes"
    if gain is None:
        return f"{measured:.0f} img/s, and {evidence.device} alone reaches {evidence.rate('gpu'):.0f}"
    return f"{measured:.0f} of a possible {gain * measured:.0f} img/s"


def _next_stage(evidence: Evidence, gain: float, cause: str) -> str:
    """The lowest ceiling above `gain` times the present rate. If decoding and training together use all CPUs, decoding
    counts as the limit, since it uses most of them."""
    rate = gain * evidence.rate_in_trouble
    lacks_cpus = cause in ("busy_neighbour", "few_workers", "few_cpus") and gain < _SAME * evidence.most_gain
    if lacks_cpus or abs(evidence.cpu_rate - rate) < (1 - _SAME) * rate:
        return "decode_all"
    limits = [evidence.copy_stage, "decode_all", "loader_warm"]
    from_memory = cause == "cache_too_small" or evidence.epochs[1] > evidence.measured_rate
    limits += ["loader_cold", "storage_cold"] if evidence.is_cold and not from_memory else []
    limits += ["gpu", "gpu_beside_loader"] if cause != "healthy" else []
    rates = {name: evidence.rate(name) for name in limits if name in evidence.ceilings}
    above = {name: limit for name, limit in rates.items() if limit >= _SAME * rate}
    return min(above, key=lambda name: above[name], default="decode_all")


def _waterfall(evidence: Evidence) -> tuple[Step, ...]:
    """Differences between experiments; they add up to a step of the full run."""
    names = {
        "gpu": evidence.stages["gpu"],
        "gpu_beside_loader": "contention with the loader",
        "full_warm": "data, copy and loop",
        "full_cold": "reading from storage",
    }
    steps, before = [], 0.0
    for stage, name in names.items():
        if stage in evidence.ceilings and (stage != "full_cold" or evidence.is_cold):
            seconds = evidence.batch_size / evidence.rate(stage)
            steps.append(Step(name, seconds - before))
            before = seconds
    return (*steps, Step("full run", before))


def _doubts(diagnosis: Diagnosis) -> Iterator[str]:
    evidence, share = diagnosis.measurements, f"the run gives {diagnosis.efficiency:.0%} of the expected rate"
    if evidence.not_measured:
        yield f"not measured: {evidence.not_measured}"
    elif diagnosis.cause == "unexplained":
        yield f"{share}, and no experiment explains the gap"
    elif diagnosis.efficiency > 1 / AGREES:
        yield f"{share}: something changed between the measurements"
    if (num := evidence.setup.num_processes) > 1:
        yield f"one of {num} processes was measured, with its share of CPUs and memory; all of them share the storage"
    # the copy is one exact value of a profile, or a mean over all copies
    estimates = [ceiling.estimate for name, ceiling in evidence.ceilings.items() if not name.startswith("copy")]
    if few := [estimate.num for estimate in estimates if estimate.coverage < LEAST_COVERAGE]:
        yield f"some rates were measured in only {min(few)} windows, too few for an interval"
    full = evidence.ceilings.get(evidence.stage("full"))
    if full and full.estimate.high - full.estimate.low > _WIDE * full.estimate.median:
        yield "the rate of the full run varies widely"
    if evidence.setup.cached_share is None:
        yield f"it is unknown whether files are in memory: {evidence.setup.cached_share_method}"
    if evidence.is_cold and evidence.unverified:
        yield f"cold rates are {evidence.unverified}"
