"""Which stage limits a run: conditions that several rules share."""

from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence

SLOWER = 0.8
"""A stage with less than this share of another stage's rate is slower; a smaller difference is noise."""
NEAR = 1.5
"""A storage below this many times the loader's rate limits the loader; both rates vary in bursts."""
AMPLE = 1.1
"""A loader above this many times the GPU's rate is fast enough."""
MAIN_SHARE = 0.4
"""Share of the GPU's idle time that one phase of the main process must fill to be the cause."""
OTHERS_SHARE = 0.2
"""Share of the usable CPUs above which other processes use more than a system's usual background work."""
STALL_SECONDS = 1.0
"""A pause between two batches that is too long for the latency of a single request."""
ORDINARY_WAITS = 0.5
"""From this number of waits for the GPU per step, ordinary steps wait."""


def is_starved(evidence: Evidence) -> bool:
    """Whether missing batches explain the idle GPU: training waits for them, or is as slow as the loader alone."""
    follows = (
        evidence.supply_rate < SLOWER * evidence.gpu_beside_loader_rate
        and evidence.measured_rate > SLOWER * evidence.supply_rate
    )
    return holds_up(evidence, "fetch") or (follows and evidence.busy_share < BUSY_ENOUGH)


def is_ample(evidence: Evidence) -> bool:
    """Whether the loader is fast enough on average; never without workers, since training then waits for each batch."""
    return bool(evidence.facts.num_workers) and evidence.supply_rate >= AMPLE * evidence.gpu_beside_loader_rate


def is_slow_reading(evidence: Evidence) -> bool:
    """Whether reading limits the loader: decoding is faster, the storage hardly."""
    return _is_held_by_reads(evidence) and not _is_cpu_of_reads(evidence)


def is_reading_on_cpu(evidence: Evidence) -> bool:
    """Whether reading limits the loader because it needs more CPU time, not faster storage."""
    return _is_held_by_reads(evidence) and _is_cpu_of_reads(evidence)


def is_short_of_cpu(evidence: Evidence) -> bool:
    """Whether decoding is slower than the GPU, or the training process lacks CPU time."""
    is_slow = min(evidence.decode_rate, evidence.cpu_rate) < AMPLE * evidence.gpu_rate or is_reading_on_cpu(evidence)
    return (
        is_slow and is_starved(evidence) and not is_ample(evidence) and not is_slow_reading(evidence)
    ) or is_crowded(evidence)


def is_crowded(evidence: Evidence) -> bool:
    """Whether the running loader slows down the GPU's steps."""
    return (
        evidence.gpu_beside_loader_rate < SLOWER * evidence.gpu_rate
        and evidence.busy_share < BUSY_ENOUGH
        and not is_slow_reading(evidence)
    )


def has_neighbours(evidence: Evidence) -> bool:
    """Whether processes outside this run use many of the CPUs."""
    return (evidence.facts.others_cpus or 0.0) >= OTHERS_SHARE * evidence.facts.usable_cpus


def is_lazy(evidence: Evidence) -> bool | None:
    """Whether the mount fetches files from a remote store at their first touch; None if too few files were touched."""
    if evidence.facts.lazy is not None:
        return evidence.facts.lazy
    return True if released(evidence) else None


def is_lazy_at_first(evidence: Evidence) -> bool:
    """Whether only the first epoch is slow: it fetches files from a remote store, while the measured run read files
    that had been fetched before."""
    first = evidence.first_epoch_rate
    return bool(
        evidence.is_cold and is_lazy(evidence) and first is not None and first < SLOWER * evidence.measured_rate
    )


def released(evidence: Evidence) -> str:
    """The file system's own sentence on files that it can fetch from its archive; "" if it has none."""
    sentences = (
        finding.evidence
        for finding in evidence.environment
        if finding.rule == "released_files" and finding.fired and finding.commands
    )
    return next(sentences, "")


def holds_up(evidence: Evidence, phase: str) -> bool:
    """Whether this phase of the main process explains the idle GPU, and more so than any other phase."""
    seconds = evidence.measurements.phases.get(phase, 0.0)
    rivals = [other for name, other in evidence.measurements.phases.items() if name not in (phase, "step", "device")]
    share = seconds / evidence.idle_seconds if evidence.idle_seconds else 0.0
    return evidence.busy_share < BUSY_ENOUGH and share >= MAIN_SHARE and seconds > max(rivals, default=0.0)


def _is_held_by_reads(evidence: Evidence) -> bool:
    late = evidence.storage_rate_at_depth < NEAR * evidence.loader_rate or _stalls(evidence)
    return (
        is_starved(evidence)
        and not is_ample(evidence)
        and late
        and evidence.loader_rate < SLOWER * evidence.decode_rate
    )


def _stalls(evidence: Evidence) -> bool:
    """Whether workers wait for files longer than they decode, and batches arrive after pauses of seconds. A short test
    of the storage may miss such pauses."""
    facts = evidence.ceilings[f"loader_{evidence.state}"].facts
    waits = facts.get("read_seconds", 0.0) > facts.get("decode_seconds", 0.0)
    return waits and evidence.longest_gap_seconds >= STALL_SECONDS


def _is_cpu_of_reads(evidence: Evidence) -> bool:
    return evidence.facts.storage_bound == "cpu"
