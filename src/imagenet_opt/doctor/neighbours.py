"""The CPU use of other processes between two moments, and of the training process in a step."""

import os
from time import monotonic

import numpy as np
import psutil

from imagenet_opt.doctor.measurements import Occupancy
from imagenet_opt.errors import printable
from imagenet_opt.machine import usable_cpus
from imagenet_opt.measure.telemetry.proc_counters import busy_seconds_of_descendants
from imagenet_opt.probe.fit.fit_timer import FitTiming

_NUM_NAMED = 3


class Neighbours:
    """Measures the CPU use of other processes until `stop`.

    Our processes are this process and its descendants, including ended ones. All other work on the CPUs of our affinity
    counts, even of invisible processes: the kernel's threads, and other containers on the host. If a quota or SLURM
    grants fewer CPUs than the affinity, other jobs may rightly use the rest, and only visible processes count.
    """

    def __init__(self) -> None:
        self._before = _Counters()

    def stop(self) -> Occupancy:
        before, now = self._before, _Counters()
        seconds = max(1e-9, now.moment - before.moment)
        used = {key: cpu - before.others.get(key, 0.0) for key, cpu in now.others.items()}
        busy = now.affinity - before.affinity - (now.own - before.own)
        if usable_cpus() < len(os.sched_getaffinity(0)):
            busy = sum(used.values())
        top = sorted((key for key in used if key in now.names and used[key] > 0), key=lambda key: -used[key])
        return Occupancy(
            min(float(usable_cpus()), max(0.0, busy / seconds)),
            tuple(f"{printable(now.names[key])} (pid {key[0]})" for key in top[:_NUM_NAMED]),
        )


class _Counters:
    """CPU seconds now: of our affinity, of this process with its descendants, and of others by pid and start time.

    names: of others that a user could end, so not pid 1 and not kernel threads, which have no command line."""

    def __init__(self) -> None:
        self.moment = monotonic()
        cpus = psutil.cpu_times(percpu=True)
        mine = [cpus[cpu] for cpu in os.sched_getaffinity(0) if cpu < len(cpus)]  # offline CPUs are not listed
        self.affinity = sum(cpu.user + cpu.nice + cpu.system for cpu in mine)
        self.own = busy_seconds_of_descendants()
        self.others: dict[tuple[int, float], float] = {}
        self.names: dict[tuple[int, float], str] = {}
        this = psutil.Process()
        ours = {this.pid, *(child.pid for child in this.children(recursive=True))}
        for process in psutil.process_iter(["name", "create_time", "cpu_times", "cmdline"]):
            times = process.info["cpu_times"]
            if times is None or process.pid in ours:
                continue
            key = process.pid, process.info["create_time"]
            self.others[key] = times.user + times.system
            if process.pid != 1 and process.info["cmdline"]:
                self.names[key] = process.info["name"]


def main_cpu_seconds(alone: FitTiming, *, spins: bool) -> float:
    """CPU time that the training process needs for a step. spins: whether waits for the device take CPU time, as CUDA's
    do by default (cudaDeviceScheduleAuto); they are left out, since a busy CPU would end them."""
    if not spins or not alone.launch_seconds:
        return alone.cpu_seconds
    beside = (seconds for name, seconds in alone.phases.items() if name not in ("step", "device", "fetch"))
    return min(alone.cpu_seconds, float(np.median(alone.launch_seconds)) + sum(beside))
