"""Hand-made measurements of a run with each cause."""

from dataclasses import replace
from typing import Any

from imagenet_opt.doctor.causes import judge
from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.first_look import Touches
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.measure.telemetry.gpu import GpuState
from tests.doctor.diagnoses import changed, make_evidence

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
CPUS = {"usable_cpus": 4, "installed_cpus": 4, "cpu_limits": {"affinity": 4}}
LOADER = {"num_workers": 4, "asked_workers": 4, "prefetch_factor": 4, "asked_prefetch": 4}


def story(
    rates: dict[str, float] | None = None,
    phases: dict[str, float] | None = None,
    *,
    facts: dict[str, dict[str, float]] | None = None,
    bound: str = "",
    in_flight: float = 16.0,
    **changes: Any,
) -> Evidence:
    """A run on a machine with 4 CPUs whose simulated GPU is the limit, with changes. facts: of ceilings. bound: what
    limits the storage with one request in flight: "bandwidth" or "cpu"; else latency. in_flight: of the loader."""
    plain = {"device_seconds": 0.1, "main_cpu_seconds": 0.01, "reads_in_flight": in_flight, "num_workers": 1.0}
    ceilings = {
        name: Ceiling((rate,), plain | (facts or {}).get(name, {})) for name, rate in (RATES | (rates or {})).items()
    }
    reads = ceilings["storage_cold"]
    ceilings["storage_cold"] = replace(reads, facts={**reads.facts, "cpus": float(bound == "cpu")})
    curve = ((1.0, reads.images_per_second), (16.0, reads.images_per_second))
    usual: dict[str, Any] = {
        **CPUS,
        **LOADER,
        "simulated": "a10g",
        "has_gpu": False,
        "batch_size": 32,
        "curves": {"reads_in_flight": curve} if bound else {},
        "config": {},
        "rated_images_per_second": 320.0,
    }
    if "num_workers" in changes:
        changes.setdefault("asked_workers", changes["num_workers"])
    whole = usual | {"phases": {"fetch": 0.001, "step": 0.08, "device": 0.0} | (phases or {})}
    run: Evidence = changed(make_evidence(), ceilings=ceilings, **whole | changes)
    return run


def finding_of(rule: str, run: Evidence) -> Finding:
    return next(finding for finding in judge(run).findings if finding.rule == rule)


SLOW_STORAGE = {"loader_cold": 60.0, "storage_cold": 65.0, "full_cold": 58.0}
SLOW_DECODE = {"loader_warm": 150.0, "loader_cold": 148.0, "decode_all": 152.0, "full_warm": 140.0, "full_cold": 139.0}
STARVED = {"fetch": 0.13}
READING = {"fetch": 0.45}
IN_RUN = ("full_warm", "full_cold")
ON_GPU = ("gpu", "gpu_beside_loader", *IN_RUN)
SLOW_RUN = dict.fromkeys(IN_RUN, 200.0)
SLOW_OBJECTS = SLOW_STORAGE | {"full_warm": 310.0}
LAZY = Touches(0.4, 0.005, True, 64, "")
EAGER = Touches(0.04, 0.04, False, 64, "")
OTHERS = GpuState(index=0, name="a GPU", others=((7, "python", 900),))
DEVICE_BUSY = {name: {"device_seconds": 32 / 120} for name in ON_GPU}


def of_url(share: float = 0.0, room: float = 1.0, **changes: Any) -> Evidence:
    usual = {"cached_share": share, "cache_room": room, "mount": None}
    return story(**{"rates": SLOW_OBJECTS, "phases": READING, **usual, **changes})


def throttled(refused: float, requests: float, **changes: Any) -> Evidence:
    return of_url(facts={"loader_cold": {"requests": requests, "throttled": refused}}, **changes)


STORIES = {
    "healthy": story(),
    "throttled": throttled(37.0, 1000.0),
    "cache_too_small": of_url(0.4, 0.4),
    "shared_gpu": story(dict.fromkeys(ON_GPU, 200.0), gpu=OTHERS),
    "slow_gpu": story(dict.fromkeys(ON_GPU, 120.0), facts=DEVICE_BUSY),
    "storage_latency": story(SLOW_STORAGE, READING, touches=EAGER),
    "storage_bandwidth": story(SLOW_STORAGE, READING, bound="bandwidth", touches=EAGER),
    "lazy_mount": story(SLOW_STORAGE, READING, touches=LAZY),
    "little_memory": story(
        SLOW_DECODE, STARVED, num_workers=1, asked_workers=4, lacks_memory=True, free_shared_memory=64 << 20
    ),
    "few_workers": story(
        SLOW_DECODE | {"decode_one": 152.0}, STARVED, num_workers=1, curves={"workers": ((1.0, 152.0), (4.0, 600.0))}
    ),
    "few_cpus": story(SLOW_DECODE, STARVED, usable_cpus=1, cpu_limits={"affinity": 1}, num_workers=1),
    "slow_decode": story(SLOW_DECODE, STARVED),
    "busy_neighbour": story(SLOW_DECODE, STARVED, others_cpus=2.0),
    "small_prefetch": story({"full_warm": 230.0, "full_cold": 228.0}, {"fetch": 0.04}, prefetch_factor=1),
    "host_sync": story({"full_warm": 240.0, "full_cold": 240.0}, waits_per_step=1.0, waits=("item at mine.py:7",)),
    "launch_bound": story(dict.fromkeys(ON_GPU, 200.0)),
    "slow_logging": story(SLOW_RUN, {"logging": 0.15}),
    "checkpoint_stall": story(SLOW_RUN, {"checkpoint": 0.15}),
    "slow_callback": story(SLOW_RUN, {"callback Mine": 0.15}),
    "slow_copy": story({"copy": 150.0, "full_warm": 145.0, "full_cold": 145.0}),
    "contention": story({"gpu_beside_loader": 200.0, "full_warm": 195.0, "full_cold": 195.0}),
    "unexplained": story(SLOW_RUN),
}
