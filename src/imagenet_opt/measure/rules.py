"""The rules in their order: the first that fires is the cause."""

from collections.abc import Callable

from imagenet_opt.measure.causes.cpus import busy_neighbour, contention, few_cpus, few_workers, slow_decode
from imagenet_opt.measure.causes.device import launch_bound, slow_copy, slow_gpu
from imagenet_opt.measure.causes.loader import lazy_mount, small_prefetch, storage_bandwidth, storage_latency
from imagenet_opt.measure.causes.main_process import checkpoint_stall, host_sync, slow_callback, slow_logging
from imagenet_opt.measure.diagnosis import Finding
from imagenet_opt.measure.evidence import Evidence

Rule = Callable[[Evidence], Finding]

RULES: tuple[Rule, ...] = (
    *(slow_gpu, checkpoint_stall, slow_logging, slow_callback, host_sync),
    *(lazy_mount, storage_bandwidth, storage_latency, small_prefetch, slow_copy),
    *(busy_neighbour, few_workers, few_cpus, slow_decode, launch_bound, contention),
)
