"""The diagnosis: the cause with the largest gain; one sentence, the next limit, the doubts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.rule import Finding, Rule
from imagenet_opt.doctor.thresholds import AGREES, LITTLE, WIDE
from imagenet_opt.measure.stats.intervals import LEAST_COVERAGE
from imagenet_opt.measure.stats.verdict import nearly
from imagenet_opt.measure.storage.page_cache import MOSTLY

WITHOUT_CAUSE = (
    Rule(
        name="healthy",
        cause="Healthy: the device is the limit",
        when=lambda e: not e.is_idle,
        says=lambda e: "",
        reaches=lambda e: e.reach(device=math.inf),  # with a faster GPU
        compares=lambda e: f"{e.device} computes {e.busy_share:.0%} of the time, {e.measured_rate:.0f} img/s",
    ),
    Rule(
        name="unexplained",
        cause="Unexplained: no single experiment explains the gap",
        when=lambda e: not e.follows_stages,
        says=lambda e: "",
        reaches=lambda e: e.expected,
        rate=lambda e: e.measured_rate,
        compares=lambda e: f"{e.measured_rate:.0f} of the {e.expected.rate:.0f} img/s that the stages alone allow",
    ),
    Rule(
        name="balanced",
        cause="Balanced: no single remedy makes the run noticeably faster",
        says=lambda e: "",
        predicts=lambda e: False,
        compares=lambda e: f"{e.measured_rate:.0f} img/s, and several stages allow hardly more",
    ),
)
"""What is said if no rule of a cause fires: the first that applies."""


@dataclass(frozen=True)
class StepPart:
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
    predictable. waterfall: parts of one step, which add up to the last item. findings: of all causes, of the checks of
    the environment, and of failed experiments. trial: result of `doctor --apply`.
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
    waterfall: tuple[StepPart, ...] = ()
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
    def named(self) -> Finding | None:
        """The finding of the cause; None without a cause."""
        return next((finding for finding in self.findings if finding.fired and finding.rule == self.cause), None)

    @property
    def explanation(self) -> list[tuple[str, str]]:
        """(label, text) of each line: cause, evidence, remedy, commands."""
        if not self.is_judged:
            return []
        lines = [("cause", self.meaning)]
        if named := self.named:
            lines += [("evidence", named.evidence), ("remedy", named.remedy)]
            commands = filter(None, [" ".join(named.overrides), *named.commands])
            lines += [("" if number else "command", text) for number, text in enumerate(commands)]
        return [(label, text) for label, text in lines if text]

    @property
    def confidence(self) -> Confidence:
        """The confidence in the diagnosis; low if it has no verdict."""
        doubts = tuple(_doubts(self)) if self.is_judged else ("there is no verdict",)
        return Confidence(("high", "medium", "low")[min(len(doubts), 2)] if self.is_judged else "low", doubts)


def diagnose(evidence: Evidence, causes: Sequence[Rule], checks: Sequence[Rule]) -> Diagnosis:
    """The cause with the largest gain; if none fires, the run is healthy, unexplained or balanced. Without a verdict if
    a ceiling is missing that it needs, because an experiment failed. checks: of the environment."""
    others = [rule.look(evidence) for rule in checks]
    others += [Finding(name, None, f"the experiment failed: {reason}") for name, reason in evidence.failed.items()]
    if evidence.lacks:
        return Diagnosis(
            measurements=evidence,
            sentence=f"Not judged: {_not_measured(evidence)}",
            cause="not_judged",
            meaning="not judged",
            expected=min((ceiling.images_per_second for ceiling in evidence.ceilings.values()), default=0.0),
            findings=tuple(others),
        )
    findings = [rule.look(evidence) for rule in causes]
    rule = _largest(findings, causes, _nearly(evidence)) or next(rule for rule in WITHOUT_CAUSE if rule.when(evidence))
    gain = rule.gain(evidence) if rule.predicts(evidence) else None
    kind, _, meaning = rule.cause.partition(": ")
    rate = rule.rate(evidence) or evidence.measured_rate
    return Diagnosis(
        measurements=evidence,
        sentence=f"{kind}: {rule.compares(evidence) or _comparison(evidence, gain)}.",
        cause=rule.name,
        meaning=meaning,
        expected=evidence.expected.rate,
        measured=evidence.measured_rate,
        next_stage=None if gain is None else rule.reaches(evidence).limit,
        next_gain=gain,
        next_rate=None if gain is None else gain * rate,
        waterfall=_waterfall(evidence),
        findings=(*findings, *others),
    )


def _nearly(evidence: Evidence) -> float:
    run = evidence.ceilings[evidence.stage("full")].estimate
    return nearly(run.low / run.median)


def _largest(findings: Sequence[Finding], causes: Sequence[Rule], nearly: float) -> Rule | None:
    """The cause with the largest gain. Causes whose gain is not predictable follow those with a predicted one."""
    least = nearly * max((finding.gain or 0.0 for finding in findings), default=0.0)
    pairs = zip(findings, causes, strict=True)
    return next((rule for finding, rule in pairs if finding.fired and (finding.gain or 0.0) >= least), None)


def _comparison(evidence: Evidence, gain: float | None) -> str:
    if gain is None:
        return f"{evidence.measured_rate:.0f} img/s, and {evidence.device} alone reaches {evidence.rate('gpu'):.0f}"
    return f"{evidence.measured_rate:.0f} of a possible {gain * evidence.measured_rate:.0f} img/s"


def _waterfall(evidence: Evidence) -> tuple[StepPart, ...]:
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
            steps.append(StepPart(name, seconds - before))
            before = seconds
    return (*steps, StepPart("full run", before))


def _not_measured(evidence: Evidence) -> str:
    """The experiments that failed, by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in evidence.failed.items():
        by_reason.setdefault(reason, []).append(name)
    return ". ".join(f"{reason} ({'; '.join(names)})" for reason, names in by_reason.items())


def _doubts(diagnosis: Diagnosis) -> Iterator[str]:
    evidence, part = diagnosis.measurements, f"the run gives {diagnosis.efficiency:.0%} of the expected rate"
    if evidence.failed:
        yield f"not measured: {_not_measured(evidence)}"
    elif diagnosis.cause == "unexplained":
        yield f"{part}, and no experiment explains the gap"
    elif diagnosis.efficiency > 1 / AGREES:
        yield f"{part}: something changed between the measurements"
    yield from _rivals(diagnosis)
    if (num := evidence.setup.num_processes) > 1:
        yield f"one of {num} processes was measured, with its share of CPUs and memory; all of them share the storage"
    run = evidence.ceilings[evidence.stage("full")].estimate
    if run.coverage < LEAST_COVERAGE:
        yield f"the full run was measured in only {run.num} windows, too few for an interval"
    elif run.high - run.low > WIDE * run.median:
        yield "the rate of the full run varies widely"
    if (share := evidence.setup.cached_share) is None:
        yield f"it is unknown whether files are in memory: {evidence.setup.cached_share_method}"
    elif evidence.setup.cache_room is None and LITTLE < share < MOSTLY and not evidence.left_out:
        yield f"{share:.0%} of the data was in memory, so the rate of the next epoch is predicted"
    if evidence.is_cold and evidence.unverified:
        yield f"cold rates are {evidence.unverified}"


def _rivals(diagnosis: Diagnosis) -> Iterator[str]:
    """Causes in another part of the run that predict nearly as much as the named one."""
    if (named := diagnosis.named) is None:
        return
    for other in diagnosis.findings:
        is_another = other.fired and other.frees not in ("", named.frees)
        if is_another and (other.gain or 0.0) >= _nearly(diagnosis.measurements) * (named.gain or 0.0):
            yield f"{other.rule} would explain it too" + (f", with a gain of {other.gain:.2f}" if other.gain else "")
