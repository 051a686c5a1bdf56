"""Judges evidence: the first rule that fires is the cause; one sentence, the gain once it is fixed, and the doubts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from imagenet_opt.doctor.causes import CAUSES
from imagenet_opt.doctor.environment import ENVIRONMENT
from imagenet_opt.doctor.evidence import AGREES, BUSY_ENOUGH, NEEDS, Evidence
from imagenet_opt.doctor.rule import Finding
from imagenet_opt.measure.stats.intervals import LEAST_COVERAGE

VERDICTS = {rule.name: rule.cause for rule in CAUSES} | {
    "healthy": "Healthy: the device is the limit",
    "unexplained": "Unexplained: no single experiment explains the gap",
}
"""Key of each verdict -> the first words of its sentence, and the cause in a few words."""
MUCH_UNEXPLAINED = 0.1
"""The gap has an explanation if it exceeds this share of the expected rate."""
_WIDE = 0.2
"""A rate varies widely if its interval is wider than this share of its median."""
_CACHES = 1.5
"""If the second read of a file is this many times as fast as the first read, a server answered it from memory."""
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
    Both are None if not predictable. waterfall: parts of one step, which add up to the last item. trial: result of
    `doctor --apply` (`Trial.plain`).
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
    def gap(self) -> str:
        """The share of the expected rate that the run does not reach, as a sentence."""
        sentence = f"{self.unexplained or 0.0:.0%} of the rate that the stages alone allow"
        in_run = any(rule.in_run for rule in CAUSES if rule.name == self.cause)
        named = "; this cause appears only in the full run"
        return sentence + named * (in_run and (self.unexplained or 0.0) > MUCH_UNEXPLAINED)

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
    verdict if a ceiling of `NEEDS` is missing, because an experiment failed.

    Raises KeyError if a ceiling is missing though no experiment failed.
    """
    environment = tuple(rule.look(evidence) for rule in ENVIRONMENT)
    failed = (Finding(name, None, f"the experiment failed: {reason}") for name, reason in evidence.failed.items())
    if missing := evidence.lacks(NEEDS):
        if not evidence.failed:
            raise KeyError(f"no {', '.join(missing)}, though no experiment failed")
        return Diagnosis(
            measurements=evidence,
            sentence=f"Not judged: {evidence.not_measured}",
            cause="unexplained",
            expected=min((ceiling.images_per_second for ceiling in evidence.ceilings.values()), default=0.0),
            measured=0.0,
            next_stage=None,
            next_gain=None,
            waterfall=(),
            findings=(*environment, *failed),
        )
    findings = _check_causes(evidence)
    is_idle = evidence.busy_share < BUSY_ENOUGH
    if is_idle and evidence.follows_stages and not any(finding.fired for finding in findings):
        findings = _check_causes(evidence, slowest=_cause_of_slowest(evidence))
    fired = next((finding for finding in findings if finding.fired), None)
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
        findings=(*findings, *environment, *failed),
    )


def _check_causes(evidence: Evidence, slowest: str = "") -> list[Finding]:
    findings: list[Finding] = []
    for rule in CAUSES:
        fired = {finding.rule for finding in findings if finding.fired}
        findings.append(rule.look(evidence, fired, slowest=slowest))
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
    measured, present = evidence.measured_rate, evidence.rate_in_trouble
    if cause == "healthy":
        return f"{evidence.device} computes {evidence.busy_share:.0%} of the time, {measured:.0f} img/s"
    if cause == "unexplained":
        return f"{measured:.0f} of the {evidence.expected_rate:.0f} img/s that the stages alone allow"
    if cause == "shared_gpu":
        return f"{measured:.0f} img/s beside other processes"
    epochs = "about {:.0f} img/s in the first epoch, {:.0f} in later ones"
    if cause == "lazy_mount" and evidence.is_lazy_at_first:
        return epochs.format(present, measured)
    if cause == "cold_cache":
        return epochs.format(present, evidence.later_rate)
    if cause in ("storage_bandwidth", "storage_latency") and evidence.passes:
        return epochs.format(measured, evidence.whole_rate)
    if cause == "cache_too_small":
        return f"about {present:.0f} img/s in each later epoch, of a possible {evidence.whole_rate:.0f}"
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
    from_cache = cause in ("cold_cache", "cache_too_small") or evidence.passes
    limits += ["loader_cold", "storage_cold"] if evidence.is_cold and not from_cache else []
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
    if evidence.shares_gpu and diagnosis.cause != "shared_gpu":
        yield "other processes are on the GPU, and may take a part of its time"
    if evidence.no_kernels:
        yield f"gaps between the GPU's kernels count as work: {evidence.no_kernels}"
    yield from _doubts_about_rates(evidence)
    yield from _doubts_about_storage(evidence)


def _doubts_about_rates(evidence: Evidence) -> Iterator[str]:
    estimates = {name: ceiling.estimate for name, ceiling in evidence.ceilings.items()}
    estimates.pop("copy_overlapped", None)  # one window, which is a mean over all copies
    if evidence.simulated is not None:
        estimates.pop("copy", None)  # one exact value, calculated from the profile
    if few := [estimate.num for estimate in estimates.values() if estimate.coverage < LEAST_COVERAGE]:
        windows = f"{min(few)} window{'s' * (min(few) > 1)}"
        yield f"some rates were measured in only {windows}, too few for an interval"
    full = evidence.ceilings.get(evidence.stage("full"))
    if full and full.estimate.high - full.estimate.low > _WIDE * full.estimate.median:
        yield "the rate of the full run varies widely"


def _doubts_about_storage(evidence: Evidence) -> Iterator[str]:
    if evidence.setup.cached_share is None:
        yield f"it is unknown whether files are in memory: {evidence.setup.cached_share_method}"
    if not evidence.is_cold:
        return
    if evidence.unverified:
        yield f"cold rates are {evidence.unverified}"
    loader, touches = evidence.ceilings.get("loader_cold"), evidence.touches
    passes = loader.facts.get("passes", 1.0) if loader else 1.0
    times = touches.first_seconds / touches.second_seconds if touches and touches.second_seconds else 0.0
    if passes > 1 and times >= _CACHES and not evidence.is_lazy:  # a lazy mount counts in the verdict instead
        yield (
            f"the data set is so small that its files were read from storage about {passes:.0f} times, and the second "
            f"read is {times:.1f} times as fast as the first: the cold rate may be too high; examine a larger data set "
            "(data.root)"
        )
