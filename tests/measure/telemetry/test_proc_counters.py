"""Columns of the machine, and of a training against processes that really compute."""

import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from imagenet_opt.measure.telemetry import proc_counters
from imagenet_opt.measure.telemetry.proc_counters import HostColumns, Machine, Training


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def work(seconds: float, name: str, done: "multiprocessing.synchronize.Event") -> None:
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)
    compute(seconds)
    done.set()
    time.sleep(60)


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A child process with a name, that computes for some seconds, and an event that is set afterwards."""
    context = multiprocessing.get_context("fork")
    done = context.Event()
    process = context.Process(target=work, args=(*request.param, done))
    yield process, done
    process.kill()
    process.join()


FILES = {
    "stat": "cpu  9 9 9 9\ncpu0 100 20 30 9000 70 4 5 6 0 0\ncpu7 1 1 1 1 1 1 1 1 0 0\nintr 1",
    "diskstats": "\n".join(f"8 0 {name} 1 2 2000 4 5 6 1000 8" for name in ("vda", "vda1", "dm-0", "loop0")),
    "net/dev": "Inter-| Receive\n lo: 9000000 1 1 1 1 1 1 1 9000000\n eth0: 2000000 1 1 1 1 1 1 1 3000000",
    "pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=500000\nfull avg10=0.00 total=1",
    "meminfo": "MemTotal: 4194304 kB\nMemFree: 1 kB\nMemAvailable: 1048576 kB\nCached: 2097152 kB",
}
"""Excerpts of /proc, in the forms of man 5 proc."""


def test_columns_are_those_of_the_kernels_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CPUs of others, the loopback, partitions, and disks that use others; other files cannot be read."""
    monkeypatch.setattr(proc_counters, "_text", lambda name: FILES.get(name, ""))
    monkeypatch.setattr(proc_counters, "_TICKS", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / name for name in ("vda", "dm-0", "loop0")])
    machine = Machine()
    expected = {
        "cpu_percent": 165.0, "disk_read_mb_per_second": 1.024, "disk_write_mb_per_second": 0.512,
        "network_received_mb_per_second": 2.0, "network_sent_mb_per_second": 3.0, "io_pressure_percent": 50.0,
        "cpu_pressure_percent": math.nan, "memory_pressure_percent": math.nan,
    }  # fmt: skip
    assert machine.counts() == pytest.approx(expected, nan_ok=True)
    assert machine.levels() == {"memory_used_gib": 3.0, "page_cache_gib": 2.0}


@pytest.mark.parametrize(
    ("child", "is_worker"), [((0.2, "pt_data_worker"), True), ((0.2, "wandb-core"), False)], indirect=["child"]
)
def test_cpu_time_of_workers_is_counted_and_kept(child, is_worker: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc_counters, "_SLOW_SECONDS", 0.0)
    process, done = child
    process.start()
    until, comm = time.monotonic() + 30, Path(f"/proc/{process.pid}/comm")
    while comm.read_text().strip() not in ("pt_data_worker", "wandb-core"):
        assert time.monotonic() < until
    training = Training()
    training.counts()
    first = psutil.Process(process.pid).cpu_times()
    assert done.wait(30)
    counted = training.counts()["workers_cpu_percent"]
    assert (20 - 100 * (first.user + first.system) - 3 if is_worker else 0) <= counted <= 40 * is_worker
    process.kill()
    process.join()
    assert training.counts()["workers_cpu_percent"] == counted


@pytest.mark.parametrize("child", [(0.2, "a program")], indirect=True)
@pytest.mark.parametrize("quota", [False, True])
def test_rates_are_over_the_time_between_two_rows(child, quota: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are two seconds apart on an injected clock; the CPU time is the kernel's. Under a quota, only the process
    and its children count."""
    now = 0.0
    monkeypatch.setattr(proc_counters, "monotonic", lambda: now)
    if quota:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    process, done = child
    cpu = [time.process_time()]
    host = HostColumns()
    cpu.append(time.process_time())
    process.start()
    assert done.wait(30)
    cpu.append(time.process_time())
    now = 2.0
    row = host.row()
    cpu.append(time.process_time())
    assert cpu[2] - cpu[1] <= row["trainer_cpu_percent"] / 100 * now <= cpu[3] - cpu[0]
    if quota:
        assert row["cpu_percent"] == pytest.approx(100 * (0.2 + cpu[3] - cpu[0]) / now, abs=6)
    else:
        assert 100 * 0.1 / now / len(os.sched_getaffinity(0)) <= row["cpu_percent"] <= 100, "at least half, in ticks"
