"""The CPU use of other processes between two moments, and of the training process in a step."""

import os
from time import monotonic

import numpy as np
import psutil

from imagenet_opt.machine import usable_cpus
from imagenet_opt.measure.telemetry.proc_counters import busy_seconds_of_descendants
from imagenet_opt.probe.fit.fit_timer import FitTiming


class Neighbours:
    """Measures the CPUs that others use until `stop`: all work on the CPUs of our affinity, even of invisible
    processes, without this process and its descendants."""

    def __init__(self) -> None:
        self._began, self._before = monotonic(), _others_seconds()

    def stop(self) -> float:
        """If a quota or SLURM grants fewer CPUs than the affinity, other jobs may rightly use the rest: then 0."""
        if usable_cpus() < len(os.sched_getaffinity(0)):
            return 0.0
        seconds = max(1e-9, monotonic() - self._began)
        return min(float(usable_cpus()), max(0.0, (_others_seconds() - self._before) / seconds))


def _others_seconds() -> float:
    cpus = psutil.cpu_times(percpu=True)
    mine = [cpus[cpu] for cpu in os.sched_getaffinity(0) if cpu < len(cpus)]  # offline CPUs are not listed
    return float(sum(cpu.user + cpu.nice + cpu.system for cpu in mine)) - busy_seconds_of_descendants()


def main_cpu_seconds(alone: FitTiming, *, spins: bool) -> float:
    """CPU time that the training process needs for a step. spins: whether waits for the device take CPU time, as CUDA's
    do by default (cudaDeviceScheduleAuto); they are left out, since a busy CPU would end them."""
    if not spins or not alone.launch_seconds:
        return alone.cpu_seconds
    beside = (seconds for name, seconds in alone.phases.items() if name not in ("step", "device", "fetch"))
    return min(alone.cpu_seconds, float(np.median(alone.launch_seconds)) + sum(beside))
