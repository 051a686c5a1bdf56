"""Measures the CPU use of other processes, and swapping, between two moments."""

import os
from time import monotonic

import psutil

from imagenet_opt.doctor.measurements import Occupancy
from imagenet_opt.errors import printable
from imagenet_opt.machine import usable_cpus
from imagenet_opt.measure.telemetry.proc_counters import busy_seconds_of_descendants

_NUM_NAMED = 3


class Neighbours:
    """Measures the CPU use of other processes until `stop`.

    Our processes are this process and its descendants, including ended ones. All other work on the CPUs of our affinity
    counts, even of invisible processes: the kernel's threads, and other containers on the host. If a quota or SLURM
    grants fewer CPUs than the affinity, other jobs may rightly use the rest, and only visible processes count.
    """

    def __init__(self) -> None:
        self._before = _Reading()

    def stop(self) -> Occupancy:
        before, now = self._before, _Reading()
        seconds = max(1e-9, now.moment - before.moment)
        used = {key: cpu - before.processes.get(key, 0.0) for key, cpu in now.processes.items() if key not in now.ours}
        busy = now.affinity - before.affinity - (now.own - before.own)
        if usable_cpus() < len(os.sched_getaffinity(0)):
            busy = sum(used.values())
        top = sorted((item for item in used.items() if item[0] in now.names), key=lambda item: -item[1])[:_NUM_NAMED]
        return Occupancy(
            seconds=seconds,
            others_cpus=min(float(usable_cpus()), max(0.0, busy / seconds)),
            others=tuple(f"{printable(now.names[key])} (pid {key[0]})" for key, cpu in top if cpu > 0),
            swapped_mb=(now.swapped - before.swapped) / 1e6,
        )


class _Reading:
    """Counters now: CPU seconds, by pid and start time for processes; swapped bytes. names: processes that a user could
    end, so not pid 1 and not kernel threads, which have no command line. ours: this process and its descendants."""

    def __init__(self) -> None:
        self.moment = monotonic()
        cpus = psutil.cpu_times(percpu=True)
        mine = [cpus[cpu] for cpu in os.sched_getaffinity(0) if cpu < len(cpus)]  # offline CPUs are not listed
        self.affinity = sum(cpu.user + cpu.nice + cpu.system for cpu in mine)
        self.own = busy_seconds_of_descendants()
        swap = psutil.swap_memory()
        self.swapped = swap.sin + swap.sout
        self.processes: dict[tuple[int, float], float] = {}
        self.names: dict[tuple[int, float], str] = {}
        self.ours: set[tuple[int, float]] = set()
        this = psutil.Process()
        our_pids = {this.pid, *(child.pid for child in this.children(recursive=True))}
        for process in psutil.process_iter(["name", "create_time", "cpu_times", "cmdline"]):
            if (times := process.info["cpu_times"]) is None:
                continue
            key = process.pid, process.info["create_time"]
            self.processes[key] = times.user + times.system
            if process.pid != 1 and process.info["cmdline"]:
                self.names[key] = process.info["name"]
            if process.pid in our_pids:
                self.ours.add(key)
