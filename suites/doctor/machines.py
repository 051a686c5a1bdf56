"""Machines with a known limit for `suites.doctor.simulated`: 76 plain ones, some for each rarer cause, random ones."""

from dataclasses import replace
from typing import Any

import numpy as np

from suites.doctor.physics import Machine

SMALL = Machine()
"""A g5.xlarge: 4 CPUs (2 cores) beside a GPU of 900 images/s."""
MIDDLE = Machine(vcpus=16, cores=8, memory_gib=60, shm_gib=30)
LARGE = Machine(vcpus=64, cores=32, memory_gib=400, shm_gib=200, gpu=2400, launch=0.02)
URL: dict[str, Any] = {"is_url": True, "reads": 8}
NVME: dict[str, Any] = {"latency": 0.0001}
NFS: dict[str, Any] = {"latency": 0.003}
HUGE: dict[str, Any] = {"decode_ms": 60, "packed_ms": 4, "image_mb": 3.0, "latency": 0.002}
EDGES = (0.8, 0.9, 1.0, 1.1, 1.25)

PLAIN = {
    SMALL: {
        "nvme": {**NVME, "mb_per_second": 1500},
        "2 ms": {"latency": 0.002},
        "8 ms": {"latency": 0.008},
        "40 MB/s": {**NFS, "mb_per_second": 40},
        "25 MB/s": {**NFS, "mb_per_second": 25},
        "40 ms": {"latency": 0.04},
        "40 ms, 4 reads": {"latency": 0.04, "reads": 4},
        "40 ms, 1 read": {"latency": 0.04, "reads": 1},
        "300 requests/s": {"latency": 0.004, "requests_per_second": 300},
        "cached": {"cached": 1.0, "memory_gib": 200},
        "packed small": {**NVME, "decode_ms": 2.2, "packed": True},
        "packed cached": {"decode_ms": 1.5, "packed": True, "cached": 1.0, "memory_gib": 64, "image_mb": 0.05},
        "1 of 4 workers, slow GPU": {**NVME, "workers": 1, "gpu": 200},
    },
    MIDDLE: {
        "nvme": {**NVME, "mb_per_second": 1500},
        "2 ms": {"latency": 0.002},
        "60 MB/s": {**NFS, "mb_per_second": 60},
        "90 MB/s": {**NFS, "mb_per_second": 90},
        "40 ms": {"latency": 0.04},
        "150 ms, 4 reads": {"latency": 0.15, "reads": 4},
        "600 ms": {"latency": 0.6},
        "8 workers": {**NVME, "workers": 8},
        "4 workers": {**NVME, "workers": 4},
        "2 workers": {**NVME, "workers": 2},
        "4 workers, late reads": {"latency": 0.04, "reads": 4, "workers": 4},
        "neighbour 6": {**NVME, "neighbour": 6, "decode_ms": 9},
        "neighbour 10": {**NVME, "neighbour": 10},
        "neighbour 3": {**NVME, "neighbour": 3, "decode_ms": 9},
        "64 MiB shm": {**NVME, "shm_gib": 1 / 16},
        "1 GiB shm": {**NVME, "shm_gib": 1},
        "launch 30 ms": {"launch": 0.03},
        "batch 16, launch 30 ms": {"batch": 16, "launch": 0.03},
        "batch 64, launch 60 ms": {"batch": 64, "launch": 0.06},
        "callback 400 ms": {"callback": 0.4},
        "callback 300 ms, 60 MB/s": {**NFS, "callback": 0.3, "mb_per_second": 60},
        "logging 350 ms": {"logging": 0.35},
        "checkpoint 600 ms": {"checkpoint": 0.6},
        "sync": {"syncs": 1.0, "launch": 0.08},
        "12 MP": {**HUGE, "mb_per_second": 2000},
        "12 MP, 120 MB/s": {**HUGE, "mb_per_second": 120},
        "PNG": {"decode_ms": 25, "packed_ms": 4, "image_mb": 0.25},
        "slow PCIe": {"copy_gb_per_second": 0.25},
        "4 of 16 CPUs": {**NVME, "vcpus": 4, "cores": 4, "installed": 16},
        "hidden quota": {**NVME, "quota": 4.0},
        "4 GiB": {**NVME, "memory_gib": 4, "shm_gib": 2},
        "stall 2 s in 10 s": {"stall": 2, "stall_every": 10, "latency": 0.002},
        "stall 3 s in 60 s": {"stall": 3, "stall_every": 60, "latency": 0.002, "decode_ms": 5},
        "batch 1024": {**NVME, "batch": 1024},
        "small network": {**NVME, "gpu": 5000, "launch": 0.01},
        "neighbour 8, 60 MB/s": {**NFS, "neighbour": 8, "mb_per_second": 60},
        "half cached, 60 MB/s": {**NFS, "mb_per_second": 60, "cached": 0.5, "memory_gib": 400},
        "90 % cached, 20 MB/s": {**NFS, "mb_per_second": 20, "cached": 0.9, "memory_gib": 400},
        **{f"decode {f} x GPU": {**NVME, "decode_ms": 9.6 / f} for f in EDGES},
        **{f"bandwidth {f} x GPU": {**NFS, "mb_per_second": 99 * f, "decode_ms": 4} for f in EDGES},
        **{
            f"bandwidth and decode {f} x GPU": {**NFS, "mb_per_second": 99 * f, "decode_ms": 9.6 / f}
            for f in (0.8, 0.95, 1.1)
        },
    },
    LARGE: {
        "nvme": {**NVME, "mb_per_second": 3000},
        "150 MB/s, RAM for all": {**NFS, "mb_per_second": 150},
        "150 MB/s, little RAM": {**NFS, "mb_per_second": 150, "memory_gib": 40, "shm_gib": 40},
        "Lustre 1 ms": {"latency": 0.001, "mb_per_second": 3000},
        "mount that keeps nothing": {"latency": 0.02, "keeps_files": False},
        "GPU 5300": {**NVME, "mb_per_second": 3000, "gpu": 5300},
        "GPU 5300, decode 9 ms": {**NVME, "mb_per_second": 3000, "gpu": 5300, "decode_ms": 9},
        "1500 requests/s": {"latency": 0.002, "requests_per_second": 1500},
        "first touch 150 ms": {"latency": 0.001, "first_touch": 0.15},
        "tmpfs": {"latency": 0.00002, "cached": 1.0},
        "slow GPU, rated": {**NVME, "mb_per_second": 3000, "rated": 2400, "gpu": 1440},
        "slow GPU, unrated": {**NVME, "mb_per_second": 3000, "gpu": 1440},
    },
}
RARER = {
    SMALL: {
        "launch 150 ms beside the loader": {"launch": 0.15, "decode_ms": 2.2, "packed": True},
        "25 MB/s, 40 % cached": {**NFS, "mb_per_second": 25, "cached": 0.4, "memory_gib": 400},
        "2 workers beside 8 idle CPUs": {**NVME, "vcpus": 16, "cores": 16, "workers": 2, "neighbour": 5},
    },
    MIDDLE: {
        "refused requests": {**URL, "latency": 0.03, "requests_per_second": 400, "refused": 0.1},
        "first epoch from a bucket": {**URL, "latency": 0.2},
        "bucket, 90 % cached": {**URL, "latency": 0.2, "cached": 0.9},
        "cache for 40 %": {**URL, "latency": 0.3, "room": 0.4, "cached": 0.4},
        "cache for 95 %": {**URL, "latency": 0.3, "room": 0.95, "cached": 0.95},
        "pauses of 8 s in 60 s": {"stall": 8, "stall_every": 60, "latency": 0.002, "prefetch": 1, "batch": 128},
        "pauses of 2 s in 10 s, 1 ahead": {"stall": 2, "stall_every": 10, "latency": 0.002, "prefetch": 1, "batch": 32},
        "stall 10 s in 2 s": {"stall": 10, "stall_every": 2, **NFS, "mb_per_second": 300},
        "shared GPU, rated": {**NVME, "gpu_share": 0.5, "rated": 900},
        "shared GPU, fast enough": {**NVME, "gpu_share": 0.97, "rated": 900},
        "hidden 400 ms": {"hidden": 0.4},
        "first touch 1.5 s": {"latency": 0.001, "first_touch": 1.5, "memory_gib": 400},
        "first touch 300 ms, 10 MB/s": {**NFS, "first_touch": 0.3, "mb_per_second": 10},
        "callback 300 ms, 2 workers": {"callback": 0.3, "workers": 2},
        "logging 250 ms, 60 MB/s": {**NFS, "logging": 0.25, "mb_per_second": 60},
        "2 workers, 50 MB/s": {"latency": 0.004, "mb_per_second": 50, "workers": 2},
        "contention": {"launch": 0.26, "decode_ms": 5},
        "half cached, 60 GiB": {**NFS, "mb_per_second": 25, "cached": 0.35},
        "healthy, launch 60 ms": {"launch": 0.06, "batch": 64, "gpu": 900},
        "packed, 64 MiB shm": {"shm_gib": 1 / 16, "decode_ms": 1.0, "packed": True},
    },
    LARGE: {
        "8 workers beside a job of 16": {**NVME, "mb_per_second": 3000, "workers": 8, "neighbour": 16, "gpu": 3000},
        "batch 32, launch 30 ms beside a job of 14": {
            **NVME,
            "batch": 32,
            "launch": 0.03,
            "neighbour": 14,
            "decode_ms": 3,
            "cores": 64,
        },
    },
}
_NAMES = {SMALL: "4", MIDDLE: "16", LARGE: "64"}


def _named(rows: dict[Machine, dict[str, dict[str, Any]]]) -> dict[str, Machine]:
    return {
        f"{_NAMES[base]} CPUs, {name}": replace(base, **changes)
        for base, machines in rows.items()
        for name, changes in machines.items()
    }


MACHINES = _named(PLAIN)
RARE = _named(RARER)


def random_machine(random: np.random.Generator) -> Machine:
    """Any mixture of storage, CPUs and GPU; some with one further trouble."""
    vcpus = int(random.choice([4, 8, 16, 32, 64]))
    trouble: dict[str, Any] = [
        {},
        {},
        {},
        {},
        {"neighbour": vcpus * random.uniform(0.1, 0.7)},
        {"workers": max(1, int(vcpus * random.uniform(0.1, 0.6)))},
        {"callback": random.uniform(0.05, 0.5)},
        {"launch": random.uniform(0.05, 0.3)},
        {"copy_gb_per_second": random.uniform(0.2, 2)},
        {"vcpus": max(1, vcpus // 4), "cores": max(1, vcpus // 4), "installed": vcpus},
        {"cached": random.uniform(0, 1), "memory_gib": 400.0},
        {"stall": 2.0, "stall_every": random.uniform(2, 20)},
    ][random.integers(12)]
    decode_ms = random.uniform(2, 12)
    own: dict[str, Any] = {
        "vcpus": vcpus,
        "cores": vcpus / 2,
        "memory_gib": 4.0 * vcpus,
        "shm_gib": 2.0 * vcpus,
        "gpu": 900 * 2 ** random.uniform(-1, 2.5),
        "latency": 10 ** random.uniform(-4, -0.7),
        "mb_per_second": 10 ** random.uniform(1.3, 3.3),
        "decode_ms": decode_ms,
        "packed_ms": decode_ms * random.uniform(0.3, 0.9),
        "reads": int(random.choice([0, 0, 0, 4, 16])),
        "batch": int(random.choice([64, 128, 256, 512])),
    }
    return Machine(**own | trouble)
