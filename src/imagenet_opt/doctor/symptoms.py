"""What is evidence of a run before a cause is named: which stage holds it up."""

from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence

SLOWER = 0.8
"""A stage that gives less than this share of another one is slower; what is nearer than that is within their noise."""
NEAR = 1.5
"""A storage that gives less than so many times what the loader gives holds it up: both are measured in bursts."""
AMPLE = 1.1
"""So many times what the GPU takes a loader must give on average to be ample."""
MAIN_SHARE = 0.4
"""Of the GPU's idle time that one occupation of the main process must fill to be its cause."""
OTHERS_SHARE = 0.2
"""Of the usable CPUs that processes of others must take to be told from a system's usual work."""
STALL_SECONDS = 1.0
"""A pause between two batches that no latency of a single request explains."""
ORDINARY_WAITS = 0.5
"""Waits for the GPU in each step; fewer are those of now and then."""


def is_starved(evidence: Evidence) -> bool:
    """Whether batches that are not there explain the idle GPU: training waits for them, or it gives what the loader
    gives alone, as little as that is."""
    follows = (
        evidence.supply_rate < SLOWER * evidence.gpu_beside_loader_rate
        and evidence.measured_rate > SLOWER * evidence.supply_rate
    )
    return holds_up(evidence, "fetch") or (follows and evidence.busy_share < BUSY_ENOUGH)


def is_ample(evidence: Evidence) -> bool:
    """Whether the loader gives enough on average; without workers it never does, as training waits for it then."""
    return bool(evidence.facts.num_workers) and evidence.supply_rate >= AMPLE * evidence.gpu_beside_loader_rate


def is_slow_reading(evidence: Evidence) -> bool:
    """Whether the storage gives hardly more than the loader, and decoding does."""
    return _is_held_by_reads(evidence) and not _is_cpu_of_reads(evidence)


def is_reading_on_cpu(evidence: Evidence) -> bool:
    """The same, but what reads was busy all the time: a CPU is the limit of reading, not the storage."""
    return _is_held_by_reads(evidence) and _is_cpu_of_reads(evidence)


def is_short_of_cpu(evidence: Evidence) -> bool:
    """Whether decoding takes longer than the GPU, or the training process itself comes short of CPU time."""
    is_slow = min(evidence.decode_rate, evidence.cpu_rate) < AMPLE * evidence.gpu_rate or is_reading_on_cpu(evidence)
    return (
        is_slow and is_starved(evidence) and not is_ample(evidence) and not is_slow_reading(evidence)
    ) or is_crowded(evidence)


def is_crowded(evidence: Evidence) -> bool:
    return (
        evidence.gpu_beside_loader_rate < SLOWER * evidence.gpu_rate
        and evidence.busy_share < BUSY_ENOUGH
        and not is_slow_reading(evidence)
    )


def has_neighbours(evidence: Evidence) -> bool:
    """Whether others' processes take much of the CPUs."""
    return (evidence.facts.others_cpus or 0.0) >= OTHERS_SHARE * evidence.facts.usable_cpus


def is_lazy(evidence: Evidence) -> bool | None:
    """Whether files come from behind the mount at first touch; None where too few were touched to know."""
    if evidence.facts.lazy is not None:
        return evidence.facts.lazy
    return True if released(evidence) else None


def is_lazy_at_first(evidence: Evidence) -> bool:
    """Whether the first epoch alone is slow: files come from behind the mount then, and the run was measured on files
    that had been touched."""
    first = evidence.first_epoch_rate
    return bool(
        evidence.is_cold and is_lazy(evidence) and first is not None and first < SLOWER * evidence.measured_rate
    )


def released(evidence: Evidence) -> str:
    """What the file system itself says of files that can be fetched into it; "" where there are none, or it does not
    say."""
    found = (
        one.evidence for one in evidence.environment if one.rule == "released_files" and one.fired and one.commands
    )
    return next(found, "")


def holds_up(evidence: Evidence, phase: str) -> bool:
    """Whether this, more than all else that the main process does, explains the idle GPU."""
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
    """Whether the workers wait for files more than they decode, and batches come after pauses of seconds: the storage
    is quick at other times, so a short test of it alone may miss that."""
    facts = evidence.ceilings[f"loader_{evidence.state}"].facts
    waits = facts.get("read_seconds", 0.0) > facts.get("decode_seconds", 0.0)
    return waits and evidence.longest_gap_seconds >= STALL_SECONDS


def _is_cpu_of_reads(evidence: Evidence) -> bool:
    return evidence.facts.storage_bound == "cpu"
