"""Data classes of the doctor: measurements, findings of the rules, and a diagnosis."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagenet_opt.doctor.facts import Facts
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.probe.growing_images import SizePhase

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
"""Key of each experiment -> its displayed name, with files and a GPU."""
_STAGES_OF_URLS = {
    "loader_warm": "loader, samples in the local cache",
    "storage_cached": "read, samples in the local cache",
    "full_warm": "full run, samples in the local cache",
}


def stage_names(facts: Facts, *, is_simulated: bool) -> dict[str, str]:
    """Key of each experiment -> its displayed name in an examination with these facts. is_simulated: of the device."""
    names = STAGES if facts.cache_room is None else STAGES | _STAGES_OF_URLS
    if facts.has_gpu or is_simulated:
        return names
    return {key: name.replace("GPU", "CPU") for key, name in names.items()}


@dataclass(frozen=True)
class Finding:
    """The result of one rule.

    fired: whether the rule applies; None if the rule could not be checked, for the reason in `evidence`. evidence: a
    sentence with the numbers. overrides: the remedy as overrides of the configuration. commands: shell commands for the
    user or an administrator. gain: predicted rate divided by the measured rate; None if not predictable. environment:
    whether the rule checks the machine and the configuration, which needs no experiment.
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
    """A part of one step, in seconds; negative if the part made the step shorter."""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """All measurements. Rates in images per second of one process, times in seconds.

    simulated: name of the simulated device's profile; None on real hardware. ceilings: keys of STAGES. phases: seconds
    of a step of the full run that the main process spent in "fetch", "logging", "checkpoint", "step", "callback NAME",
    ... step_seconds: each step of the full run. curves: points (x, y) by name: "workers" (workers, images/s decoded
    from memory), "reads_in_flight" (requests in flight, images/s read cold), "reads_in_flight_cached" (the same from
    memory), "cached_share" (share of the data in the page cache, images/s read). growing: the phases of a run whose
    images grow; the largest size is measured. config: the configuration without secrets.
    """

    simulated: str | None
    batch_size: int
    ceilings: Mapping[str, Ceiling]
    facts: Facts
    step_seconds: tuple[float, ...] = ()
    curves: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    growing: tuple[SizePhase, ...] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    date: str = ""

    @property
    def stages(self) -> dict[str, str]:
        """Key of each experiment -> its displayed name."""
        return stage_names(self.facts, is_simulated=self.simulated is not None)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The measurements and their verdict.

    sentence: the verdict. cause: a key of CAUSES. expected, measured: images per second of the lowest ceiling, files in
    the state of the full run, and of the full run (0 if not measured). next_stage: the lowest ceiling once the cause is
    fixed. next_gain: rate after the fix divided by the measured rate; for a healthy run, the gain with a faster GPU.
    Both are None if not predictable. waterfall: parts of one step, which add up to the last item. trial: result of
    `doctor --apply` (`Trial.plain`).
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
        return self.measured / self.expected if self.expected else 0.0

    @property
    def unexplained(self) -> float | None:
        """Share of the expected rate that the run does not reach; None if no run was measured."""
        return max(0.0, 1 - self.efficiency) if self.measured else None
