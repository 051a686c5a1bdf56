"""What is seen of a run before a cause is named: which stage holds it up."""

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


def is_starved(seen: Evidence) -> bool:
    """Whether batches that are not there explain the idle GPU: training waits for them, or it gives what the loader
    gives alone, as little as that is."""
    follows = seen.supply < SLOWER * seen.gpu_beside_loader and seen.measured > SLOWER * seen.supply
    return holds_up(seen, "fetch") or (follows and seen.busy < BUSY_ENOUGH)


def is_ample(seen: Evidence) -> bool:
    """Whether the loader gives enough on average; without workers it never does, as training waits for it then."""
    return bool(seen.facts.num_workers) and seen.supply >= AMPLE * seen.gpu_beside_loader


def is_slow_reading(seen: Evidence) -> bool:
    """Whether the storage gives hardly more than the loader, and decoding does."""
    return _is_held_by_reads(seen) and not _is_cpu_of_reads(seen)


def is_reading_on_cpu(seen: Evidence) -> bool:
    """The same, but what reads was busy all the time: a CPU is the limit of reading, not the storage."""
    return _is_held_by_reads(seen) and _is_cpu_of_reads(seen)


def is_short_of_cpu(seen: Evidence) -> bool:
    """Whether decoding takes longer than the GPU, or the training process itself comes short of CPU time."""
    is_slow = min(seen.decode, seen.cpu_budget) < AMPLE * seen.gpu or is_reading_on_cpu(seen)
    return (is_slow and is_starved(seen) and not is_ample(seen) and not is_slow_reading(seen)) or is_crowded(seen)


def is_crowded(seen: Evidence) -> bool:
    return seen.gpu_beside_loader < SLOWER * seen.gpu and seen.busy < BUSY_ENOUGH and not is_slow_reading(seen)


def has_neighbours(seen: Evidence) -> bool:
    """Whether others' processes take much of the CPUs."""
    return (seen.facts.others_cpus or 0.0) >= OTHERS_SHARE * seen.facts.usable_cpus


def is_lazy(seen: Evidence) -> bool | None:
    """Whether files come from behind the mount at first touch; None where too few were touched to know."""
    if seen.facts.lazy is not None:
        return seen.facts.lazy
    return True if released(seen) else None


def is_lazy_at_first(seen: Evidence) -> bool:
    """Whether the first epoch alone is slow: files come from behind the mount then, and the run was measured on files
    that had been touched."""
    first = seen.first_epoch
    return bool(seen.is_cold and is_lazy(seen) and first is not None and first < SLOWER * seen.measured)


def released(seen: Evidence) -> str:
    """What the file system itself says of files that can be fetched into it; "" where there are none, or it does not
    say."""
    found = (one.evidence for one in seen.environment if one.rule == "released_files" and one.fired and one.commands)
    return next(found, "")


def holds_up(seen: Evidence, phase: str) -> bool:
    """Whether this, more than all else that the main process does, explains the idle GPU."""
    seconds = seen.phases.get(phase, 0.0)
    rivals = [other for name, other in seen.phases.items() if name not in (phase, "step", "device")]
    share = seconds / seen.idle if seen.idle else 0.0
    return seen.busy < BUSY_ENOUGH and share >= MAIN_SHARE and seconds > max(rivals, default=0.0)


def _is_held_by_reads(seen: Evidence) -> bool:
    late = seen.storage_at_depth < NEAR * seen.loader or _stalls(seen)
    return is_starved(seen) and not is_ample(seen) and late and seen.loader < SLOWER * seen.decode


def _stalls(seen: Evidence) -> bool:
    """Whether the workers wait for files more than they decode, and batches come after pauses of seconds: the storage
    is quick at other times, so a short test of it alone may miss that."""
    facts = seen.ceilings[f"loader_{seen.state}"].facts
    waits = facts.get("read_seconds", 0.0) > facts.get("decode_seconds", 0.0)
    return waits and seen.longest_gap >= STALL_SECONDS


def _is_cpu_of_reads(seen: Evidence) -> bool:
    return seen.facts.storage_bound == "cpu"
