"""Rules and the diagnosis: the first rule that fires is the cause; one sentence, the gain, the doubts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from imagenet_opt.doctor.commands import Texts, changing
from imagenet_opt.doctor.evidence import AGREES, BUSY_ENOUGH, Evidence
from imagenet_opt.measure.stats.intervals import LEAST_COVERAGE

_WIDE = 0.2  # a rate varies widely if its interval is wider than this share of its median
_SAME = 0.97  # a limit below this share of a rate cannot have allowed that rate


@dataclass(frozen=True)
class Finding:
    """The result of one rule.

    fired: whether the rule applies; None if the rule could not be checked, for the reason in `evidence`. evidence: a
    sentence with the numbers. overrides: the remedy as overrides of the configuration, without those that are in effect
    already. commands: shell commands for the user or an administrator. gain: predicted rate divided by the measured
    rate; None if not predictable. environment: whether the rule checks the machine and the configuration.
    """

    rule: str
    fired: bool | None
    evidence: str
    remedy: str = ""
    overrides: Texts = ()
    commands: Texts = ()
    gain: float | None = None
    environment: bool = False


@dataclass(frozen=True, kw_only=True)
class Rule:
    """cause: first words of the verdict and the cause in a few words, "Storage-bound: storage answers late"; "" for
    a check of the environment. when: whether the rule applies. says: the evidence. remedy, overrides, commands,
    gain: as in `Finding`, if the rule fires. unknown: why the rule cannot be checked; "" if it can. rate: images per
    second while the cause lasts. compares: this rate and what is possible; "" for the usual words."""

    name: str
    cause: str = ""
    when: Callable[[Evidence], bool]
    says: Callable[[Evidence], str]
    remedy: str | Callable[[Evidence], str] = ""
    overrides: Callable[[Evidence], Texts] = lambda evidence: ()
    commands: Callable[[Evidence], Texts] = lambda evidence: ()
    gain: Callable[[Evidence], float | None] = lambda evidence: None
    unknown: Callable[[Evidence], str] = lambda evidence: ""
    rate: Callable[[Evidence], float] = lambda evidence: evidence.measured_rate
    compares: Callable[[Evidence], str] = lambda evidence: ""

    def look(self, evidence: Evidence, *, applies: bool = False) -> Finding:
        """Check the rule. applies: fire although `when` is not true."""
        reason = self.unknown(evidence)
        fired = None if reason else applies or self.when(evidence)
        finding = Finding(self.name, fired, reason or self.says(evidence), environment=not self.cause)
        if not fired:
            return finding
        return replace(
            finding,
            remedy=self.remedy if isinstance(self.remedy, str) else self.remedy(evidence),
            overrides=changing(evidence, *self.overrides(evidence)),
            commands=self.commands(evidence),
            gain=None if evidence.lacks else self.gain(evidence),
        )


WITHOUT_CAUSE = (
    Rule(
        name="unexplained",
        cause="Unexplained: no single experiment explains the gap",
        when=lambda e: e.busy_share < BUSY_ENOUGH,
        says=lambda e: "",
        gain=lambda e: max(1.0, e.expected_rate / e.measured_rate),
        compares=lambda e: f"{e.measured_rate:.0f} of the {e.expected_rate:.0f} img/s that the stages alone allow",
    ),
    Rule(
        name="healthy",
        cause="Healthy: the device is the limit",
        when=lambda e: True,
        says=lambda e: "",
        gain=lambda e: max(1.0, min(e.supply_rate, e.copy_rate) / e.measured_rate),  # with a faster GPU
        compares=lambda e: f"{e.device} computes {e.busy_share:.0%} of the time, {e.measured_rate:.0f} img/s",
    ),
)
"""What is said if no rule of a cause fires: the first that applies."""


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

    sentence: the verdict. cause: the name of a rule. meaning: the cause in a few words. expected, measured: images per
    second of the lowest ceiling, files in the state of the full run, and of the full run (0 if not measured).
    next_stage: the lowest ceiling once the cause is fixed. next_gain: rate after the fix divided by the rate with the
    cause; next_rate: the rate after the fix; for a healthy run, both with a faster GPU. These are None if not
    predictable. waterfall: parts of one step, which add up to the last item. findings: of the causes down to the one
    that fired, of the checks of the environment, and of failed experiments. trial: result of `doctor --apply`.
    """

    measurements: Evidence
    sentence: str
    cause: str
    meaning: str
    expected: float
    measured: float = 0.0
    next_stage: str | None = None
    next_gain: float | None = None
    next_rate: float | None = None
    waterfall: tuple[Step, ...] = ()
    findings: tuple[Finding, ...] = ()
    trial: Mapping[str, Any] | None = None

    @property
    def is_judged(self) -> bool:
        return bool(self.measured)

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


def diagnose(evidence: Evidence, causes: Sequence[Rule], checks: Sequence[Rule]) -> Diagnosis:
    """The first rule of `causes` that fires is the cause; if none fires, the run is healthy, or its gap is unexplained.
    Without a verdict if a ceiling is missing that it needs, because an experiment failed. checks: of the environment.
    """
    others = [rule.look(evidence) for rule in checks]
    others += [Finding(name, None, f"the experiment failed: {reason}") for name, reason in evidence.failed.items()]
    if evidence.lacks:
        return Diagnosis(
            measurements=evidence,
            sentence=f"Not judged: {_not_measured(evidence)}",
            cause="unexplained",
            meaning="not judged",
            expected=min((ceiling.images_per_second for ceiling in evidence.ceilings.values()), default=0.0),
            findings=tuple(others),
        )
    findings, rule = _first(evidence, causes)
    kind, _, meaning = rule.cause.partition(": ")
    rate, gain = rule.rate(evidence), rule.gain(evidence)
    return Diagnosis(
        measurements=evidence,
        sentence=f"{kind}: {rule.compares(evidence) or _comparison(evidence, gain)}.",
        cause=rule.name,
        meaning=meaning,
        expected=evidence.expected_rate,
        measured=evidence.measured_rate,
        next_stage=None if gain is None else _next_stage(evidence, rule, gain * rate),
        next_gain=gain,
        next_rate=None if gain is None else gain * rate,
        waterfall=_waterfall(evidence),
        findings=(*findings, *others),
    )


def _first(evidence: Evidence, causes: Sequence[Rule]) -> tuple[list[Finding], Rule]:
    """Findings of the causes down to the first that fires, and the rule that names the cause. If none fires although
    the device waits, and the run is as fast as its slowest stage, then the stage is slower by less than the rules ask
    for: the cause of this stage applies."""
    findings: list[Finding] = []
    for rule in causes:
        findings.append(rule.look(evidence))
        if findings[-1].fired:
            return findings, rule
    if evidence.busy_share >= BUSY_ENOUGH or not evidence.follows_stages:
        return findings, next(rule for rule in WITHOUT_CAUSE if rule.when(evidence))
    slowest = "slow_copy" if evidence.copy_rate <= evidence.fed_rate else "contention"
    if evidence.supply_rate < evidence.fed_rate:
        slowest = "slow_decode"  # reading would have been named
    rule = next(rule for rule in causes if rule.name == slowest)
    return [*(finding for finding in findings if finding.rule != slowest), rule.look(evidence, applies=True)], rule


def _comparison(evidence: Evidence, gain: float | None) -> str:
    """The rate of the run, and the rate that is possible."""
    if gain is None:
        return f"{evidence.measured_rate:.0f} img/s, and {evidence.device} alone reaches {evidence.rate('gpu'):.0f}"
    return f"{evidence.measured_rate:.0f} of a possible {gain * evidence.measured_rate:.0f} img/s"


def _next_stage(evidence: Evidence, rule: Rule, rate: float) -> str:
    """The lowest ceiling above `rate`, which the run has without the cause. If decoding and training together use all
    CPUs, decoding counts as the limit, since it uses most of them."""
    most = min(evidence.rate("gpu"), evidence.copy_rate)
    lacks_cpus = rule.name in ("busy_neighbour", "few_workers", "few_cpus") and rate < _SAME * most
    if lacks_cpus or abs(evidence.cpu_rate - rate) < (1 - _SAME) * rate:
        return "decode_all"
    limits = ["copy_overlapped" if "copy_overlapped" in evidence.ceilings else "copy", "decode_all", "loader_warm"]
    is_passing = rule.rate(evidence) != evidence.measured_rate  # then files are read from memory
    limits += ["loader_cold", "storage_cold"] if evidence.is_cold and not is_passing else []
    limits += ["gpu", "gpu_beside_loader"] if rule.name != "healthy" else []
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


def _not_measured(evidence: Evidence) -> str:
    """The experiments that failed, by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in evidence.failed.items():
        by_reason.setdefault(reason, []).append(name)
    return ". ".join(f"{reason} ({'; '.join(names)})" for reason, names in by_reason.items())


def _doubts(diagnosis: Diagnosis) -> Iterator[str]:
    evidence, share = diagnosis.measurements, f"the run gives {diagnosis.efficiency:.0%} of the expected rate"
    if evidence.failed:
        yield f"not measured: {_not_measured(evidence)}"
    elif diagnosis.cause == "unexplained":
        yield f"{share}, and no experiment explains the gap"
    elif diagnosis.efficiency > 1 / AGREES:
        yield f"{share}: something changed between the measurements"
    if (num := evidence.setup.num_processes) > 1:
        yield f"one of {num} processes was measured, with its share of CPUs and memory; all of them share the storage"
    run = evidence.ceilings[evidence.stage("full")].estimate
    if run.coverage < LEAST_COVERAGE:
        yield f"the full run was measured in only {run.num} windows, too few for an interval"
    elif run.high - run.low > _WIDE * run.median:
        yield "the rate of the full run varies widely"
    if evidence.setup.cached_share is None:
        yield f"it is unknown whether files are in memory: {evidence.setup.cached_share_method}"
    if evidence.is_cold and evidence.unverified:
        yield f"cold rates are {evidence.unverified}"
