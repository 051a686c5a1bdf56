"""What the doctor measured and found: ceilings, facts, the findings of its rules, and a verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagenet_opt.doctor.facts import Facts
from imagenet_opt.measure.stats.rate import Ceiling

STAGES = {
    "gpu": "GPU, batch resident",
    "gpu_beside_loader": "GPU, while the loader runs",
    "loader_warm": "loader, files in memory",
    "loader_cold": "loader, files on storage",
    "decode_one": "decode from memory, 1 worker",
    "decode_all": "decode from memory, all workers",
    "storage_cached": "read, files in memory",
    "storage_cold": "read, files on storage",
    "copy": "copy to the GPU",
    "copy_overlapped": "copy to the GPU while it computes",
    "full_warm": "full run, files in memory",
    "full_cold": "full run, files on storage",
}
"""Key of each experiment -> its name on screen."""


@dataclass(frozen=True)
class Finding:
    """What one rule found.

    fired: whether the rule applies; None if it could not be checked, for the reason in `evidence`. evidence: a sentence
    with the numbers. remedy: what to do, in words. overrides: the remedy as overrides of the configuration, if any.
    commands: shell commands for the user or an administrator. gain: predicted rate over the measured one; None if
    it cannot be predicted. environment: whether the rule is a check of the machine and the configuration, which needs
    no experiment.
    """

    rule: str
    fired: bool | None
    evidence: str
    remedy: str = ""
    overrides: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    gain: float | None = None
    environment: bool = False


@dataclass(frozen=True)
class Step:
    """A part of one step in seconds; negative if this part made the step shorter."""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What was measured. Rates in images per second of one process, times in seconds.

    simulated: the profile's name, None on real hardware. ceilings: keys of STAGES. phases: seconds of a step of the
    full run that the main process spent in "fetch", "logging", "checkpoint", "step", "callback NAME", ...
    step_seconds: of each step of the full run. curves: points (x, y) by name: "workers" (workers, images/s decoded from
    memory), "reads_in_flight" (requests in flight, images/s read cold), "reads_in_flight_cached" (the same from
    memory), "cached_share" (share of the data in the page cache, images/s read). config: all of it, without secrets.
    """

    simulated: str | None
    batch_size: int
    ceilings: Mapping[str, Ceiling]
    facts: Facts
    step_seconds: tuple[float, ...] = ()
    curves: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    date: str = ""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was measured, and what it means.

    sentence: the verdict. cause: a key of CAUSES. expected, measured: images per second; the least ceiling of the state
    in which the run was measured, and the full run, 0 without one. next_stage, next_gain: the ceiling that is next once
    the cause is fixed, and how many times as fast the run then is, or would be with a faster GPU if it is healthy;
    None where that cannot be predicted. waterfall: parts of one step, from the GPU alone to the full run; they add up
    to the last one exactly. trial: what the overrides of `doctor --apply` brought, see doctor/apply.py; None without.
    """

    measurements: Measurements
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
    def efficiency(self) -> float:
        """measured / expected."""
        return self.measured / self.expected if self.expected else 0.0

    @property
    def unexplained(self) -> float | None:
        """Share of what is expected that the run does not give; None without a run."""
        return max(0.0, 1 - self.efficiency) if self.measured else None
