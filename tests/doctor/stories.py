"""Hand-made measurements of a run with each cause."""

from typing import Any

from imagenet_opt.doctor.diagnosis import Finding, Measurements
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.verdict import judge
from imagenet_opt.measure.stats.rate import Ceiling
from tests.doctor.diagnoses import change, make_facts

RATES = {
    "gpu": 320.0,
    "gpu_beside_loader": 318.0,
    "loader_warm": 1500.0,
    "loader_cold": 1400.0,
    "decode_one": 400.0,
    "decode_all": 1500.0,
    "storage_cached": 30_000.0,
    "storage_cold": 5000.0,
    "copy": 40_000.0,
    "full_warm": 318.0,
    "full_cold": 316.0,
}
CPUS = {"usable_cpus": 4, "machine_cpus": 4, "num_workers": 4, "prefetch_factor": 4}
FACTS = CPUS | {"rated_images_per_second": 320.0, "main_cpu_seconds": 0.01, "mb_per_image": 0.11}


def story(
    rates: dict[str, float] | None = None, phases: dict[str, float] | None = None, *, curves: Any = None, **facts: Any
) -> Evidence:
    """A run on a machine with 4 CPUs whose GPU is the limit, with changes."""
    ceilings = {name: Ceiling((rate,), {"device_seconds": 0.1}) for name, rate in (RATES | (rates or {})).items()}
    measurements = Measurements(
        batch_size=32,
        simulated="a10g",
        ceilings=ceilings,
        phases={"fetch": 0.001, "step": 0.08, "device": 0.0} | (phases or {}),
        facts=make_facts(**FACTS | facts),
        curves=curves or {},
    )
    return Evidence(measurements=measurements)


def finding_of(rule: str, run: Evidence) -> Finding:
    return next(finding for finding in judge(run).findings if finding.rule == rule)


SLOW_STORAGE = {"loader_cold": 60.0, "storage_cold": 65.0, "full_cold": 58.0}
SLOW_DECODE = {"loader_warm": 150.0, "loader_cold": 148.0, "decode_all": 152.0, "full_warm": 140.0, "full_cold": 139.0}


STARVED = {"fetch": 0.13}
READING = {"fetch": 0.45}
IN_RUN = ("full_warm", "full_cold")
ON_GPU = ("gpu", "gpu_beside_loader", *IN_RUN)


def _slow_gpu() -> Evidence:
    """The device computes for the whole step."""
    slow = story(dict.fromkeys(ON_GPU, 120.0))
    ceilings = {name: Ceiling(rates.windows, {"device_seconds": 32 / 120}) for name, rates in slow.ceilings.items()}
    return change(slow, ceilings=ceilings)


SLOW_RUN = dict.fromkeys(IN_RUN, 200.0)
SLOW_OBJECTS = SLOW_STORAGE | {"full_warm": 310.0}
REMOTE = {"storage_bound": "latency", "requests_in_flight": 16.0, "lazy": False, "cached_share": 0.0, "cache_room": 1.0}
STORIES = {
    "healthy": story(),
    "throttled": story(SLOW_OBJECTS, READING, **REMOTE, storage_requests=1000.0, throttled_requests=37),
    "cold_cache": story(SLOW_OBJECTS, READING, **REMOTE),
    "cache_too_small": story(SLOW_OBJECTS, READING, **REMOTE | {"cache_room": 0.4, "cached_share": 0.4}),
    "slow_cache": story(
        {"loader_warm": 60.0, "storage_cached": 65.0, "full_warm": 58.0}, READING, **REMOTE | {"cached_share": 1.0}
    ),
    "slow_gpu": _slow_gpu(),
    "storage_latency": story(
        SLOW_STORAGE, READING, storage_bound="latency", storage_latency_seconds=0.3, requests_in_flight=16.0
    ),
    "storage_bandwidth": story(SLOW_STORAGE, READING, storage_bound="bandwidth"),
    "lazy_mount": story(
        SLOW_STORAGE, READING, storage_bound="latency", lazy=True, first_touch_seconds=0.4, second_touch_seconds=0.005
    ),
    "few_workers": story(
        SLOW_DECODE | {"decode_one": 152.0}, STARVED, num_workers=1, curves={"workers": ((1.0, 152.0), (4.0, 600.0))}
    ),
    "few_cpus": story(SLOW_DECODE, STARVED, usable_cpus=1, num_workers=1, cpu_limit="affinity"),
    "slow_decode": story(SLOW_DECODE, STARVED, megapixels=12.0),
    "busy_neighbour": story(SLOW_DECODE, STARVED, others_cpus=2.0, others_names="stress (pid 7)"),
    "small_prefetch": story({"full_warm": 230.0, "full_cold": 228.0}, {"fetch": 0.04}, prefetch_factor=1),
    "host_sync": story({"full_warm": 240.0, "full_cold": 240.0}, waits_per_step=1.0, waits_places="item at mine.py:7"),
    "launch_bound": story(dict.fromkeys(ON_GPU, 200.0)),
    "slow_logging": story(SLOW_RUN, {"logging": 0.15}),
    "checkpoint_stall": story(SLOW_RUN, {"checkpoint": 0.15}),
    "slow_callback": story(SLOW_RUN, {"callback Mine": 0.15}),
    "slow_copy": story({"copy": 150.0, "full_warm": 145.0, "full_cold": 145.0}),
    "contention": story({"gpu_beside_loader": 200.0, "full_warm": 195.0, "full_cold": 195.0}),
    "unexplained": story(SLOW_RUN),
}
