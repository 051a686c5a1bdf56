"""Hand-made measurements of a run with each cause."""

from dataclasses import replace
from typing import Any

from imagenet_opt.data.budget import LoaderBudget
from imagenet_opt.doctor.causes import judge
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.first_touch import Touches
from imagenet_opt.doctor.rule import Finding
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
LOADER = {"num_workers": 4, "prefetch_factor": 4}


def cut_to(num_workers: int, prefetch: int, *, asked: int = 4, in_shared: bool = True) -> dict[str, Any]:
    """A loader that asked for `asked` workers and 4 batches ahead, and got less for lack of memory."""
    budget = LoaderBudget(num_workers, prefetch, asked, 4, 3 << 30, 32 << 20, in_shared)
    return {"num_workers": num_workers, "prefetch_factor": prefetch, "budget": budget}


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
    whole = usual | {"phases": {"fetch": 0.001, "step": 0.08, "device": 0.0} | (phases or {})}
    run: Evidence = changed(make_evidence(), ceilings=ceilings, **whole | changes)
    return run


def finding_of(rule: str, run: Evidence) -> Finding:
    return next(finding for finding in judge(run).findings if finding.rule == rule)


SLOW_STORAGE = {"loader_cold": 60.0, "storage_cold": 65.0, "full_cold": 58.0}
SLOW_DECODE = {"loader_warm": 150.0, "loader_cold": 148.0, "decode_all": 152.0, "full_warm": 140.0, "full_cold": 139.0}
STARVED = {"fetch": 0.13}
QUEUED = {"decode_seconds": 0.1, "cpu_wait_seconds": 0.1}
READING = {"fetch": 0.45}
IN_RUN = ("full_warm", "full_cold")
ON_GPU = ("gpu", "gpu_beside_loader", *IN_RUN)
SLOW_LAUNCHES = dict.fromkeys(ON_GPU, 200.0)
SLOW_RUN = dict.fromkeys(IN_RUN, 200.0)
RAM_FOR_ALL = {"available_memory": 1 << 40, "rates": {**SLOW_STORAGE, "full_warm": 310.0}, "phases": READING}
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
    "little_memory": story(SLOW_DECODE, STARVED, **cut_to(1, 4)),
    "few_workers": story(
        SLOW_DECODE | {"decode_one": 152.0}, STARVED, num_workers=1, curves={"workers": ((1.0, 152.0), (4.0, 600.0))}
    ),
    "few_cpus": story(SLOW_DECODE, STARVED, usable_cpus=1, cpu_limits={"affinity": 1}, num_workers=1),
    "slow_decode": story(SLOW_DECODE, STARVED),
    "busy_neighbour": story(SLOW_DECODE, STARVED, others_cpus=2.0, facts={"loader_cold": QUEUED}),
    "small_prefetch": story({"full_warm": 230.0, "full_cold": 228.0}, {"fetch": 0.04}, prefetch_factor=1),
    "host_sync": story({"full_warm": 240.0, "full_cold": 240.0}, waits_per_step=1.0, waits=("item at mine.py:7",)),
    "launch_bound": story(SLOW_LAUNCHES),
    "slow_logging": story(SLOW_RUN, {"logging": 0.15}),
    "checkpoint_stall": story(SLOW_RUN, {"checkpoint": 0.15}),
    "slow_callback": story(SLOW_RUN, {"callback Mine": 0.15}),
    "slow_copy": story({"copy": 150.0, "full_warm": 145.0, "full_cold": 145.0}),
    "contention": story({"gpu_beside_loader": 200.0, "full_warm": 195.0, "full_cold": 195.0}),
    "unexplained": story(SLOW_RUN),
    "balanced": story({"gpu_beside_loader": 262.0, "loader_cold": 262.0, "decode_all": 262.0, "full_cold": 258.0}),
}

LAZY_BUT_TOUCHED: dict[str, Any] = {"touches": Touches(0.3, 0.003, True, 64, ""), "in_flight": 8.0}
"""Files took 0.3 s when the doctor first touched them; the run read them again, at full speed."""
LATE = {"rates": {"loader_cold": 60.0, "full_cold": 58.0}, "phases": READING, "touches": EAGER}
CURVE = {"reads_in_flight": ((1.0, 4.0), (16.0, 65.0), (64.0, 180.0), (256.0, 190.0))}
SLOW_READS = {"rates": SLOW_STORAGE, "phases": READING, "touches": EAGER}
MANY_CPUS = {"usable_cpus": 16, "installed_cpus": 16, "cpu_limits": {"affinity": 16}}
SMALL_SHM = MANY_CPUS | cut_to(1, 1, asked=16)
HYPER_THREADS = MANY_CPUS | {
    "rates": SLOW_DECODE,
    "phases": STARVED,
    "num_workers": 8,
    "curves": {"workers": ((1.0, 20.0), (8.0, 152.0), (16.0, 182.0))},
}
SHARE_OF_8_GPUS = {"usable_cpus": 12, "installed_cpus": 96, "cpu_limits": {"affinity": 96}, "num_processes": 8}
SLOW_COPY = {"copy": 150.0, "full_warm": 145.0, "full_cold": 145.0}


def waits(read: float, decode: float, gap: float) -> dict[str, Any]:
    facts = {"read_seconds": read, "decode_seconds": decode, "longest_gap_seconds": gap}
    return LATE | {"facts": {"loader_cold": facts}}


def open_100_ms() -> Evidence:
    """Measured on two cores with batches of 256, a simulated A10G and 100 ms for each open: 256 requests in flight
    read about as fast as 128, a loader with fewer in flight gets less, and the run was faster than the loader alone."""
    rates = {"gpu": 900.0, "gpu_beside_loader": 895.0, "decode_all": 690.0, "decode_one": 400.0}
    rates |= {"storage_cold": 1250.0, "loader_cold": 553.0, "full_cold": 614.0}
    facts = {name: {"device_seconds": 256 / 900} for name in ("gpu", "gpu_beside_loader", "full_cold")}
    facts |= {"loader_cold": {"read_seconds": 0.5, "decode_seconds": 0.4, "num_workers": 2.0}}
    facts |= {"storage_cold": {"latency_median": 0.11}}
    curve = ((1.0, 9.0), (4.0, 37.0), (16.0, 150.0), (64.0, 625.0), (256.0, 1250.0))
    return story(
        rates, {"fetch": 0.01}, facts=facts, in_flight=64.0, batch_size=256, usable_cpus=2, installed_cpus=2,
        cpu_limits={"affinity": 2}, num_workers=2, left_out="nothing stays", touches=EAGER,
        curves={"reads_in_flight": curve},
    )  # fmt: skip


CASES_OF_RULES = {
    "a callback beside slow storage costs nothing": (
        story(SLOW_STORAGE, {"callback Mine": 0.4, "fetch": 0.1}, bound="bandwidth", touches=EAGER),
        "storage_bandwidth", "pack",
    ),
    "a neighbour of idle CPUs": (story(SLOW_LAUNCHES, others_cpus=8.0, **MANY_CPUS), "launch_bound", "compile_mode"),
    "few workers, but slower storage": (
        story(SLOW_DECODE | {"storage_cold": 160.0}, STARVED, bound="bandwidth", num_workers=1,
              curves={"workers": ((1.0, 152.0), (4.0, 600.0)), "reads_in_flight": ((1.0, 160.0), (16.0, 160.0))}),
        "few_workers", "data.num_workers=4",
    ),
    "the rest comes in time from the storage": (story(**RAM_FOR_ALL, cached_share=0.9), "healthy", ""),
    "late opens are no bandwidth": (open_100_ms(), "storage_latency", "data.reads_in_flight=128"),
    "more in flight": (story(**SLOW_READS, curves=CURVE), "storage_latency", "data.reads_in_flight=16"),
    "more than configured": (
        story(**SLOW_READS, curves=CURVE, config={"data": {"reads_in_flight": 4}}), "storage_latency", "in_flight=auto"
    ),
    "shards are copied": (
        story(**SLOW_READS, packed=True, config={"data": {"root": "/fsx/packed"}}), "storage_latency", "cp -r /fsx/pa"
    ),
    "RAM for all": (story(**RAM_FOR_ALL, bound="bandwidth", touches=EAGER), "storage_bandwidth", "hydrate"),
    "the storage stalls": (story(**waits(3.0, 2.0, 5.0)), "storage_latency", "pack"),
    "each batch waits for its last file": (story(**waits(3.0, 0.5, 0.2)), "storage_latency", "pack"),
    "a reader without CPU time": (story(**SLOW_READS, bound="cpu"), "slow_decode", "pack"),
    "released files, no first touch": (
        story(**SLOW_READS | {"touches": None}, checked_files=200, released_files=40), "lazy_mount", "hydrate"
    ),
    "first touches decide": (story(**LAZY_BUT_TOUCHED), "lazy_mount", "hydrate"),
    "many reads": (story(**LAZY_BUT_TOUCHED | {"touches": Touches(0.3, 0.003, True, 512, "")}), "healthy", ""),
    "lazy, but in memory": (story(**LAZY_BUT_TOUCHED, cached_share=1.0), "healthy", ""),
    "less than 1 % refused": (throttled(9.0, 1000.0), "storage_latency", "fills the local cache"),
    "half as many": (throttled(3.0, 10.0, packed=True), "throttled", "data.reads_in_flight=2"),
    "the storage gives the last tenth in time": (of_url(room=0.9), "storage_latency", "hydrate"),
    "the cache is on a slow disk": (
        of_url(1.0, rates={"loader_warm": 60.0, "storage_cached": 65.0, "full_warm": 58.0}), "storage_bandwidth", "pack"
    ),
    "the limit of the cache": (
        of_url(0.4, 0.4, config={"data": {"root": "s3://b/in", "cache_gb": 40}}), "cache_too_small", "data.cache_gb"
    ),
    "Docker's 64 MiB of /dev/shm": (story(SLOW_DECODE, STARVED, **SMALL_SHM), "little_memory", "--shm-size"),
    "memory cuts the batches ahead": (
        story({"full_warm": 230.0, "full_cold": 228.0}, {"fetch": 0.04}, **cut_to(4, 1, in_shared=False)),
        "little_memory", "sbatch --mem=7G",
    ),
    "hyper-threads give 1.2 times": (story(**HYPER_THREADS), "slow_decode", "data.num_workers=16"),
    "workers resize": (story(SLOW_DECODE, STARVED, resize_on="worker"), "slow_decode", "data.resize_on=device"),
    "its share of the CPUs": (story(SLOW_DECODE, STARVED, **SHARE_OF_8_GPUS), "slow_decode", "pack"),
    "an idle notebook on the GPU": (story(gpu=OTHERS), "healthy", ""),
    "shared and slow": (story(dict.fromkeys(ON_GPU, 120.0), gpu=OTHERS), "shared_gpu", "CUDA_VISIBLE_"),
    "launches wait for a CPU": (
        story(SLOW_LAUNCHES, others_cpus=1.5, facts={"gpu": {"main_slowdown": 1.6}}), "busy_neighbour", "top"
    ),
    "a neighbour of low priority": (story(SLOW_DECODE, STARVED, others_cpus=2.0), "slow_decode", "pack"),
    "workers that outnumber the CPUs": (
        story(SLOW_DECODE, STARVED, others_cpus=1.0, num_workers=8, facts={"loader_cold": QUEUED}),
        "slow_decode", "pack",
    ),
    "crowded, but the storage is slow": (
        story(**SLOW_READS, others_cpus=2.0, facts={"loader_cold": QUEUED | {"read_seconds": 0.4}}),
        "storage_latency", "pack",
    ),
    "no second kind of CUDA graphs": (
        story(SLOW_LAUNCHES, config={"callbacks": {"acceleration": {"cuda_graph": True}}}), "launch_bound", "opt tune"
    ),
    "copies that are not made ahead": (
        story(SLOW_COPY, config={"data": {"copies": "pinned"}}), "slow_copy", "data.copies=ahead"
    ),
    "without workers": (
        story({"loader_cold": 100.0, "decode_all": 100.0, "full_cold": 76.0}, {"fetch": 0.32}, num_workers=0,
              prefetch_factor=0, curves={"workers": ((0.0, 100.0), (4.0, 390.0))}), "few_workers", "data.num_workers=4"
    ),
}  # fmt: skip
