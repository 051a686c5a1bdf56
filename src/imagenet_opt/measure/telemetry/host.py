"""Reads the load of the usable CPUs and the use of memory."""

import os
from time import monotonic

import psutil

from imagenet_opt.machine import GIB, usable_cpus
from imagenet_opt.measure.telemetry.sampler import Readings


def host_readings() -> Readings:
    """Endless readings of this machine.

    | key | unit |
    |---|---|
    | `cpu_percent` | 0 to 100 of the usable CPUs, over the time since the last reading; None in the first |
    | `memory_used_gib` | GiB of RAM that the system could not give to a new program, shared memory included |

    CPU time counts all work on the CPUs of this process's affinity, including network and file system work of the
    kernel. If a cgroup quota or SLURM grants fewer CPUs than the affinity, other jobs use these CPUs too, so only
    this process and its descendants count. Memory is of the whole machine: a sum over processes would count
    shared batches several times.
    """
    num_cpus = usable_cpus()
    has_all_cpus = num_cpus == len(os.sched_getaffinity(0))
    busy_seconds = _busy_seconds_of_affinity if has_all_cpus else busy_seconds_of_descendants
    busy, now = busy_seconds(), monotonic()
    yield {"cpu_percent": None, "memory_used_gib": _memory_used_gib()}
    while True:
        busy_before, before = busy, now
        busy, now = busy_seconds(), monotonic()
        percent = 100 * (busy - busy_before) / (now - before) / num_cpus
        yield {"cpu_percent": min(100.0, max(0.0, percent)), "memory_used_gib": _memory_used_gib()}


def _busy_seconds_of_affinity() -> float:
    cpus = psutil.cpu_times(percpu=True)
    times = [cpus[cpu] for cpu in os.sched_getaffinity(0) if cpu < len(cpus)]  # offline CPUs are not listed
    return sum(cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq + cpu.steal for cpu in times)


def busy_seconds_of_descendants() -> float:
    """CPU time of this process and its descendants, including ended descendants."""
    this = psutil.Process()
    seconds = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _memory_used_gib() -> float:
    memory = psutil.virtual_memory()
    return (memory.total - memory.available) / GIB
