"""A rule of the doctor, and what it finds in the evidence of a run."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from imagenet_opt.doctor.commands import Texts, changing
from imagenet_opt.doctor.evidence import Evidence, Reach
from imagenet_opt.doctor.thresholds import AGREES
from imagenet_opt.measure.stats.verdict import LEAST_GAIN


@dataclass(frozen=True)
class Finding:
    """The result of one rule.

    fired: whether the rule applies and its remedy helps; None if the rule could not be checked, for the reason in
    `evidence`. evidence: a sentence with the numbers. overrides: the remedy as overrides of the configuration, without
    those that are in effect already. commands: shell commands for the user or an administrator. gain: predicted rate
    divided by the rate with the cause; None if not predictable. frees: the part of the run that the remedy makes
    faster. environment: whether the rule checks the machine and the configuration.
    """

    rule: str
    fired: bool | None
    evidence: str
    remedy: str = ""
    overrides: Texts = ()
    commands: Texts = ()
    gain: float | None = None
    frees: str = ""
    environment: bool = False


@dataclass(frozen=True, kw_only=True)
class Rule:
    """cause: first words of the verdict and the cause in a few words, "Storage-bound: storage answers late"; "" for
    a check of the environment. frees: the part of the run that is slow, such as "storage" or "cpu": causes of different
    parts contradict each other. when: whether the evidence allows the cause; the gain decides whether the cause
    matters. says: the evidence. remedy, overrides, commands: as in `Finding`, if the rule fires. unknown: why the rule
    cannot be checked; "" if it can. reaches: the run after the remedy. predicts: False if `reaches` is only the most
    that a remedy could bring. rate: images per second while the cause lasts, if this is not what the limits allow as
    they are. compares: this rate and what is possible; "" for the usual words."""

    name: str
    cause: str = ""
    frees: str = ""
    when: Callable[[Evidence], bool] = lambda evidence: True
    says: Callable[[Evidence], str]
    remedy: str | Callable[[Evidence], str] = ""
    overrides: Callable[[Evidence], Texts] = lambda evidence: ()
    commands: Callable[[Evidence], Texts] = lambda evidence: ()
    unknown: Callable[[Evidence], str] = lambda evidence: ""
    reaches: Callable[[Evidence], Reach] = lambda evidence: evidence.reach()
    predicts: Callable[[Evidence], bool] = lambda evidence: True
    rate: Callable[[Evidence], float | None] = lambda evidence: None
    compares: Callable[[Evidence], str] = lambda evidence: ""

    def gain(self, evidence: Evidence) -> float:
        """Rate after the remedy / rate now. A gap between the run and its limits counts for no cause and stays."""
        rate, reached = self.rate(evidence), self.reaches(evidence).rate
        as_is = evidence.reach().rate if rate is None else rate
        gain = max(1.0, reached / as_is)
        keeps_gap = gain < LEAST_GAIN or rate is not None or evidence.measured_rate < AGREES * as_is
        return gain if keeps_gap else max(1.0, reached / evidence.measured_rate)

    def look(self, evidence: Evidence) -> Finding:
        reason, gain = self.unknown(evidence), None
        fired = None if reason else self.when(evidence)
        if fired and self.cause:
            gain = self.gain(evidence)
            fired = gain >= LEAST_GAIN
        finding = Finding(self.name, fired, reason or self.says(evidence), frees=self.frees, environment=not self.cause)
        if not fired:
            return finding
        return replace(
            finding,
            remedy=self.remedy if isinstance(self.remedy, str) else self.remedy(evidence),
            overrides=changing(evidence, *self.overrides(evidence)),
            commands=self.commands(evidence),
            gain=gain if gain and self.predicts(evidence) else None,
        )
