"""The rules in their order: the first that fires is the cause."""

from collections.abc import Callable, Mapping

from imagenet_opt.measure.causes.cpus import busy_neighbour, contention, few_cpus, few_workers, slow_decode
from imagenet_opt.measure.causes.device import launch_bound, slow_copy, slow_gpu
from imagenet_opt.measure.causes.loader import lazy_mount, small_prefetch, storage_bandwidth, storage_latency
from imagenet_opt.measure.causes.main_process import checkpoint_stall, host_sync, slow_callback, slow_logging
from imagenet_opt.measure.diagnosis import STAGES, Finding
from imagenet_opt.measure.evidence import Evidence

Rule = Callable[[Evidence], Finding]

NEEDS = ("gpu", "gpu_beside_loader", "loader", "decode_all", "full", "num_workers", "usable_cpus")
"""What each verdict rests on, beside what its rule needs."""
_READS = (*NEEDS, "storage")
_CPUS = (*_READS, "prefetch_factor", "machine_cpus")
RULES: Mapping[Rule, tuple[str, ...]] = {
    slow_gpu: ("gpu",),
    checkpoint_stall: NEEDS,
    slow_logging: NEEDS,
    slow_callback: NEEDS,
    host_sync: NEEDS,
    lazy_mount: _READS,
    storage_bandwidth: _READS,
    storage_latency: _READS,
    small_prefetch: (*_READS, "prefetch_factor"),
    slow_copy: NEEDS,
    busy_neighbour: (*_READS, "prefetch_factor"),
    few_workers: _CPUS,
    few_cpus: _CPUS,
    slow_decode: _CPUS,
    launch_bound: _CPUS,
    contention: _CPUS,
}
"""Rule -> the measurements without which it cannot be looked at, as `Evidence.lacks` knows them."""


def look(rule: Rule, seen: Evidence) -> Finding:
    """What the rule finds. It has not fired where a measurement that it needs is missing: that is `None`."""
    if missing := seen.lacks(RULES[rule]):
        names = ", ".join(STAGES.get(name, name) for name in missing)
        return Finding(rule.__name__, None, f"not measured: {names}")
    return rule(seen)
