"""What the machine does and what a training process takes of it, as columns of a timeline."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import psutil

from imagenet_opt.machine import GIB

_WORKER = "pt_data_worker"
"""What torch calls the processes of a DataLoader (2.6 and later)."""
_FIND_SECONDS = 1.0
_NAN = float("nan")

Row = dict[str, float]


def host_rows(trainer_pid: int) -> Iterator[Row]:
    """Endless rows of this machine and the process `trainer_pid`; docs/timeline.md lists the columns.

    Rates are of the time since the row before, NaN in the first one. The kernel counts CPU time in hundredths of a
    second: in rows 0.1 s apart it comes in steps of 10 %.
    """
    trainer = _Trainer(trainer_pid)
    counts, now = _counts() | trainer.counts(), monotonic()
    yield dict.fromkeys(counts, _NAN) | _levels(trainer)
    while True:
        counted, before = counts, now
        counts, now = _counts() | trainer.counts(), monotonic()
        rates = {name: max(counts[name] - counted[name], 0.0) / (now - before) for name in counted}  # NaN stays NaN
        yield rates | _levels(trainer)


def _counts() -> Row:
    """Counters, in units that make their rates those of the columns."""
    cpus = psutil.cpu_times(percpu=True)
    counts = {f"cpu{i}_percent": 100 * _busy_seconds(cpus[i]) for i in _affinity() if i < len(cpus)}
    disk, network = psutil.disk_io_counters(), psutil.net_io_counters()
    return counts | {
        "disk_read_mb_per_second": disk.read_bytes / 1e6 if disk else _NAN,
        "disk_write_mb_per_second": disk.write_bytes / 1e6 if disk else _NAN,
        "network_received_mb_per_second": network.bytes_recv / 1e6 if network else _NAN,
        "network_sent_mb_per_second": network.bytes_sent / 1e6 if network else _NAN,
        **{f"{name}_pressure_percent": 100 * _stalled_seconds(name) for name in ("cpu", "io", "memory")},
    }


def _levels(trainer: "_Trainer") -> Row:
    memory = psutil.virtual_memory()
    return {
        "num_workers": float(len(trainer.workers)),
        "memory_used_gib": (memory.total - memory.available) / GIB,
        "page_cache_gib": memory.cached / GIB,
    }


class _Trainer:
    """A training process and its loader's workers, which are looked for once a second."""

    def __init__(self, pid: int) -> None:
        self.workers: dict[int, psutil.Process] = {}
        self._process = psutil.Process(pid)
        self._found_at = -_FIND_SECONDS
        self._seen: dict[int, float] = {}
        self._workers_seconds = 0.0

    def counts(self) -> Row:
        """CPU seconds x 100. Those of workers count from when each was first seen, so that they only ever grow."""
        if monotonic() >= self._found_at + _FIND_SECONDS:
            self._find()
        seen = {pid: seconds for pid, worker in self.workers.items() if (seconds := _cpu_seconds(worker)) is not None}
        self._workers_seconds += sum(seconds - self._seen[pid] for pid, seconds in seen.items() if pid in self._seen)
        self._seen = seen
        own = _cpu_seconds(self._process)
        return {
            "trainer_cpu_percent": _NAN if own is None else 100 * own,
            "workers_cpu_percent": 100 * self._workers_seconds,
        }

    def _find(self) -> None:
        self._found_at = monotonic()
        children = {pid: self.workers.get(pid) or _worker(pid) for pid in self._children()}
        self.workers = {pid: worker for pid, worker in children.items() if worker is not None}

    def _children(self) -> list[int]:
        """Read where the kernel lists them, CONFIG_PROC_CHILDREN; psutil looks at all processes of the machine."""
        files = list(Path(f"/proc/{self._process.pid}/task").glob("*/children"))
        with suppress(psutil.Error, OSError):
            if not files:
                return [child.pid for child in self._process.children()]
            return [int(pid) for file in files for pid in file.read_text().split()]
        return list(self.workers)


def _worker(pid: int) -> psutil.Process | None:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return process if process.name() == _WORKER else None
    return None


def _cpu_seconds(process: psutil.Process) -> float | None:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return times.user + times.system
    return None


def _affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _busy_seconds(cpu: "psutil._pslinux.scputimes") -> float:
    return float(cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq + cpu.steal)


def _stalled_seconds(resource: str) -> float:
    """Time in which at least one task waited for it; NaN where the kernel does not say (its docs: accounting/psi)."""
    try:
        some = Path(f"/proc/pressure/{resource}").read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return _NAN
