"""Conditions that several rules share: which stage limits a run."""

import math

from imagenet_opt.doctor.evidence import BUSY_ENOUGH, SLOWER, Evidence
from imagenet_opt.measure.storage.page_cache import MOSTLY

NEAR = 1.5
"""A storage slower than this many times the loader's rate limits the loader; both rates vary in bursts."""
AMPLE = 1.1
"""A loader faster than this many times the GPU's rate is fast enough."""
MAIN_SHARE = 0.4
"""A phase of the main process is a cause only if it fills this share of the GPU's idle time."""
OTHERS_SHARE = 0.2
"""Above this share of the usable CPUs, other processes use more than the usual background work of a system."""
MOSTLY_READS = 0.8
"""Above this share of a worker's time, its waits for files limit it, whatever the storage can do alone."""
STALL_SECONDS = 1.0
"""A pause of this length between two batches is a stall of the storage, not the latency of a single request."""
ORDINARY_WAITS = 0.5
"""Ordinary steps wait for the GPU if there are at least this many waits per step."""


def is_starved(evidence: Evidence) -> bool:
    """Whether missing batches explain the idle GPU: training waits for them, or is as slow as the loader alone."""
    follows = (
        evidence.supply_rate < SLOWER * evidence.rate("gpu_beside_loader")
        and evidence.measured_rate > SLOWER * evidence.supply_rate
    )
    return holds_up(evidence, "fetch") or (follows and evidence.busy_share < BUSY_ENOUGH)


def is_ample(evidence: Evidence) -> bool:
    """Whether the loader is fast enough on average; never without workers, since training then waits for each batch."""
    return bool(evidence.facts.num_workers) and evidence.supply_rate >= AMPLE * evidence.rate("gpu_beside_loader")


def is_slow_reading(evidence: Evidence) -> bool:
    """Whether reading limits the loader: decoding is faster than the loader, and the storage is hardly faster."""
    return _is_held_by_reads(evidence) and evidence.facts.storage_bound != "cpu"


def is_reading_on_cpu(evidence: Evidence) -> bool:
    """Whether reading limits the loader because it needs more CPU time, not faster storage."""
    return _is_held_by_reads(evidence) and evidence.facts.storage_bound == "cpu"


def is_short_of_cpu(evidence: Evidence) -> bool:
    """Whether decoding is slower than the GPU, or the training process lacks CPU time."""
    lowest = min(evidence.rate("decode_all"), evidence.cpu_rate)
    is_slow = lowest < AMPLE * evidence.rate("gpu") or is_reading_on_cpu(evidence)
    is_limit = is_starved(evidence) and not is_ample(evidence) and not is_slow_reading(evidence)
    return (is_slow and is_limit) or is_crowded(evidence)


def is_crowded(evidence: Evidence) -> bool:
    """Whether the running loader slows down the GPU's steps."""
    return (
        evidence.rate("gpu_beside_loader") < SLOWER * evidence.rate("gpu")
        and evidence.busy_share < BUSY_ENOUGH
        and not is_slow_reading(evidence)
    )


def is_slow_to_copy(evidence: Evidence) -> bool:
    """Whether the copies slow down a device that never waits for the host."""
    return evidence.rate_with_copy(evidence.compute_rate) < SLOWER * evidence.compute_rate


def has_neighbours(evidence: Evidence) -> bool:
    """Whether processes outside this run use many of the CPUs."""
    return (evidence.facts.others_cpus or 0.0) >= OTHERS_SHARE * evidence.facts.usable_cpus


def is_lazy(evidence: Evidence) -> bool | None:
    """Whether the mount fetches files from a remote store at their first touch; None if too few files were touched."""
    if evidence.facts.lazy is not None:
        return evidence.facts.lazy
    return True if released(evidence) else None


def is_lazy_at_first(evidence: Evidence) -> bool:
    """Whether the first epoch, which fetches files from a remote store, is slower than the measured run, which read
    files that had been fetched before."""
    first = evidence.first_epoch_rate
    is_slower = first is not None and first < SLOWER * evidence.measured_rate
    return evidence.is_cold and bool(is_lazy(evidence)) and is_slower


def is_cache_too_small(evidence: Evidence) -> bool:
    """Whether the local cache of a URL has so little room that later epochs wait for the storage too."""
    room = evidence.facts.cache_room
    is_partial = evidence.is_cold and room is not None and room < MOSTLY
    return is_partial and is_slow_reading(evidence) and evidence.later_rate < SLOWER * evidence.whole_rate


def is_cold_cache(evidence: Evidence) -> bool:
    """Whether the present epoch waits for the storage of a URL, and later epochs will find the samples in the local
    cache."""
    is_slower = evidence.is_cold and evidence.present_rate < SLOWER * evidence.later_rate
    return evidence.facts.cache_room is not None and is_slower and is_slow_reading(evidence)


def deeper(evidence: Evidence) -> tuple[str, ...]:
    """The override for more requests in flight, if more requests were measured to be faster: the fastest number
    if data.reads_in_flight is "auto", else "auto"."""
    depth, rate = evidence.best_depth
    if SLOWER * rate <= evidence.storage_rate_at_depth:
        return ()
    number = math.ceil(depth / max(1, evidence.facts.num_workers))
    return (f"data.reads_in_flight={number if evidence.facts.reads_in_flight == 'auto' else 'auto'}",)


def released(evidence: Evidence) -> str:
    """The evidence that Lustre can fetch files from its archive; "" if there is none."""
    findings = (finding for finding in evidence.environment if finding.rule == "released_files")
    return next((finding.evidence for finding in findings if finding.fired and finding.commands), "")


def holds_up(evidence: Evidence, phase: str) -> bool:
    """Whether this phase of the main process explains the idle GPU, and takes longer than any other phase."""
    phases = evidence.measurements.phases
    seconds = phases.get(phase, 0.0)
    others = [other for name, other in phases.items() if name not in (phase, "step", "device")]
    share = seconds / evidence.idle_seconds if evidence.idle_seconds else 0.0
    return evidence.busy_share < BUSY_ENOUGH and share >= MAIN_SHARE and seconds > max(others, default=0.0)


def _is_held_by_reads(evidence: Evidence) -> bool:
    is_near = evidence.storage_rate_at_depth < NEAR * evidence.rate("loader")
    is_late = is_near or _mostly_reads(evidence) or _stalls(evidence)
    is_slower = evidence.rate("loader") < SLOWER * evidence.rate("decode_all")
    return is_starved(evidence) and not is_ample(evidence) and is_late and is_slower


def _mostly_reads(evidence: Evidence) -> bool:
    """Whether workers wait for files most of the time. A storage that reads faster alone may still make them wait: each
    batch waits for its latest file."""
    read, decode = _worker_seconds(evidence)
    return read > MOSTLY_READS * (read + decode)


def _stalls(evidence: Evidence) -> bool:
    """Whether workers wait for files longer than they decode, and batches arrive after pauses of seconds. A short test
    of the storage may miss such pauses."""
    read, decode = _worker_seconds(evidence)
    return read > decode and evidence.longest_gap_seconds >= STALL_SECONDS


def _worker_seconds(evidence: Evidence) -> tuple[float, float]:
    """Seconds per batch in which a loader worker waits for files, and in which it decodes."""
    facts = evidence.ceilings[evidence.stage("loader")].facts
    return facts.get("read_seconds", 0.0), facts.get("decode_seconds", 0.0)
