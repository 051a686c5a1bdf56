"""Counters of the machine and of this training process from /proc, as columns of a timeline.

Rows are read five times a second during training, with less work than psutil's, which also has no pressures.
"""

import os
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from time import monotonic, process_time

import psutil

from imagenet_opt.machine import usable_cpus

_WORKER = "pt_data_worker"
"""Name of the worker processes of torch's DataLoader (2.6 and later)."""
_SLOW_SECONDS = 1.0
_TICKS = os.sysconf("SC_CLK_TCK")
_SECTOR_BYTES = 512  # in /proc/diskstats, for every disk
_STACKED = ("loop", "ram", "zram", "dm-", "md")
"""Block devices without own storage; the kernel counts their bytes at the disks below them."""
_PRESSURES = ("cpu", "io", "memory")
_NAN = float("nan")
OTHERS_SHARE = 0.2  # of the usable CPUs; the usual background work of a system takes less

Sample = dict[str, float]


class Machine:
    """Counters and levels of the whole machine; NaN if not available. Source: man 5 proc."""

    def __init__(self) -> None:
        self._cpus = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
        self._disks = {disk.name for disk in Path("/sys/block").glob("*") if not disk.name.startswith(_STACKED)}

    def counts(self) -> Sample:
        """Counters, scaled so that their rates have the units of the columns."""
        disks = [line for line in _lines("diskstats") if line[2] in self._disks]
        links = [line for line in _lines("net/dev") if line[0].endswith(":") and line[0] != "lo:"]
        return {
            "cpu_percent": self._cpu_percent(),
            "disk_read_mb_per_second": _sum(disks, 5) * _SECTOR_BYTES / 1e6,
            "disk_write_mb_per_second": _sum(disks, 9) * _SECTOR_BYTES / 1e6,
            "network_received_mb_per_second": _sum(links, 1) / 1e6,
            "network_sent_mb_per_second": _sum(links, 9) / 1e6,
            **{f"{name}_pressure_percent": self._stalled_seconds(name) * 100 for name in _PRESSURES},
        }

    def levels(self) -> Sample:
        kib = {line[0].rstrip(":"): int(line[1]) for line in _lines("meminfo")}
        total, available, cached = (kib.get(name, _NAN) / 2**20 for name in ("MemTotal", "MemAvailable", "Cached"))
        return {"memory_used_gib": total - available, "page_cache_gib": cached}

    def _cpu_percent(self) -> float:
        """Mean CPU seconds x 100 of the usable CPUs: user, nice, system, irq, softirq and steal."""
        ticks = [sum(map(int, line[1:4] + line[6:9])) for line in _lines("stat") if line and line[0] in self._cpus]
        return 100 / _TICKS * fmean(ticks) if ticks else _NAN

    def _stalled_seconds(self, resource: str) -> float:
        """Seconds in which at least one task waited for a resource. Source: accounting/psi in Linux's documentation."""
        # the first line is of "some" tasks, the second of all tasks at once
        lines = _lines(f"pressure/{resource}")
        return int(lines[0][-1].removeprefix("total=")) / 1e6 if lines else _NAN


class Training:
    """This process and its loader's workers; the list of workers is updated once a second."""

    def __init__(self) -> None:
        self._workers: list[int] = []
        self._listed_at = -_SLOW_SECONDS
        self._worker_seconds: dict[int, float] = {}
        knows_children = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
        self._workers_seconds = 0.0 if knows_children else _NAN

    def counts(self) -> Sample:
        """CPU seconds x 100. A worker's seconds count from its first reading, so that the sum never falls."""
        if monotonic() >= self._listed_at + _SLOW_SECONDS:
            self._find()
        now = {pid: seconds for pid in self._workers if (seconds := _cpu_seconds(pid)) is not None}
        before = self._worker_seconds
        self._workers_seconds += sum(seconds - before[pid] for pid, seconds in now.items() if pid in before)
        self._worker_seconds = now
        return {"trainer_cpu_percent": 100 * process_time(), "workers_cpu_percent": 100 * self._workers_seconds}

    def _find(self) -> None:
        """List the workers by the kernel's lists of the children of each thread (CONFIG_PROC_CHILDREN)."""
        self._listed_at = monotonic()
        threads = os.listdir("/proc/self/task")
        children = [pid for thread in threads for pid in _text(f"self/task/{thread}/children").split()]
        self._workers = [int(pid) for pid in children if _text(f"{pid}/comm").rstrip("\n") == _WORKER]


class HostColumns:
    """Rows of this machine and this process; docs/bottleneck.md lists the columns.

    Rates are over the time since the previous row. The kernel counts CPU time in hundredths of a second: in rows 0.2 s
    apart it has steps of 5 % of a CPU.
    """

    def __init__(self) -> None:
        self._machine, self._training = Machine(), Training()
        self._has_quota = usable_cpus() < len(os.sched_getaffinity(0))
        self._quota = _NAN, monotonic(), busy_seconds_of_descendants()  # percent, and when it was read
        self._at, self._counts = monotonic(), self._read()

    def row(self) -> Sample:
        at, counts, before = monotonic(), self._read(), self._counts
        # max() of NaN and 0.0, in this order, is NaN
        rates = {name: max(count - before[name], 0.0) / (at - self._at) for name, count in counts.items()}
        self._at, self._counts = at, counts
        percent = self._percent_of_quota() if self._has_quota else rates["cpu_percent"]
        return rates | {"cpu_percent": min(max(percent, 0.0), 100.0)} | self._machine.levels()

    def _percent_of_quota(self) -> float:
        """Where a cgroup quota or SLURM grants fewer CPUs than the affinity, other jobs use the other CPUs, so only
        this process and its descendants count: over the last second."""
        _, at, busy = self._quota
        if (now := monotonic()) >= at + _SLOW_SECONDS:
            seconds = busy_seconds_of_descendants()
            self._quota = 100 * (seconds - busy) / (now - at) / usable_cpus(), now, seconds
        return self._quota[0]

    def _read(self) -> Sample:
        return self._machine.counts() | self._training.counts()


def busy_seconds_of_descendants() -> float:
    """CPU time of this process and its descendants, including ended descendants."""
    this = psutil.Process()
    seconds = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def queued_seconds_of_descendants() -> float:
    """Time in which threads of this process and its descendants were ready to compute, and no CPU was free; threads
    that have ended do not count."""
    this = psutil.Process()
    nanoseconds = 0
    for process in (this, *this.children(recursive=True)):
        for file in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            with suppress(OSError, ValueError):
                nanoseconds += int(file.read_text().split()[1])
    return nanoseconds / 1e9


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


def _sum(lines: list[list[str]], field: int) -> float:
    return float(sum(int(line[field]) for line in lines)) if lines else _NAN


def _text(name: str) -> str:
    """A file of /proc; empty if it cannot be read or its process has ended."""
    with suppress(OSError):
        return Path("/proc", name).read_text(errors="replace")
    return ""


def _lines(name: str) -> list[list[str]]:
    return [line.split() for line in _text(name).splitlines()]


def _cpu_seconds(pid: int) -> float | None:
    """User and system seconds of all threads; None for a process that has ended."""
    fields = _text(f"{pid}/stat").rpartition(")")[2].split()  # after the name, which may contain any character
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else None
