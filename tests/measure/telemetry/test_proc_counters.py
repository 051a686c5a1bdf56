"""The machine's columns against psutil's counters, and a training's against processes that really compute."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from imagenet_opt.measure.telemetry.proc_counters import CORE, HostColumns, Machine, Training


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


def test_counters_are_psutils_without_disks_that_use_others() -> None:
    def theirs() -> dict[str, float]:
        cpus = psutil.cpu_times(percpu=True)
        network = psutil.net_io_counters(pernic=True)
        counts = {
            f"cpu{i}_percent": 100 * (c.user + c.nice + c.system + c.irq + c.softirq + c.steal)
            for i, c in enumerate(cpus)
            if i in os.sched_getaffinity(0)
        }
        if set(network) - {"lo"}:
            counts["network_received_mb_per_second"] = sum(n.bytes_recv for k, n in network.items() if k != "lo") / 1e6
        disks = {
            name: disk
            for name, disk in (psutil.disk_io_counters(perdisk=True) or {}).items()
            if os.path.exists(f"/sys/block/{name}") and not name.startswith(("loop", "ram", "zram", "dm-", "md"))
        }
        if disks:
            counts["disk_read_mb_per_second"] = sum(disk.read_bytes for disk in disks.values()) / 1e6
        return counts

    low, value, high = theirs(), Machine().counts(), theirs()
    for name, expected in low.items():
        assert expected - 1e-6 <= value[name] <= high[name] + 1e-6, name
    memory, levels = psutil.virtual_memory(), Machine().levels()
    assert levels["memory_used_gib"] == pytest.approx((memory.total - memory.available) / 2**30, abs=0.3)
    assert 0 < levels["page_cache_gib"] <= memory.total / 2**30


@pytest.mark.parametrize(
    ("child", "is_worker"), [((0.3, "pt_data_worker"), True), ((0.3, "wandb-core"), False)], indirect=["child"]
)
def test_cpu_time_of_workers_is_counted_and_kept(child, is_worker: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagenet_opt.measure.telemetry.proc_counters._SLOW_SECONDS", 0.0)
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
    assert (30 - 100 * (first.user + first.system) - 3 if is_worker else 0) <= counted <= 60 * is_worker
    process.kill()
    process.join()
    assert training.counts()["workers_cpu_percent"] == counted


@pytest.mark.parametrize("child", [(0.4, "a program")], indirect=True)
@pytest.mark.parametrize("quota", [False, True])
def test_rates_are_over_the_time_between_two_rows(child, quota: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are two seconds apart on an injected clock; the CPU time is the kernel's. Under a quota, only the process
    and its children count."""
    now = 0.0
    monkeypatch.setattr("imagenet_opt.measure.telemetry.proc_counters.monotonic", lambda: now)
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
        assert row["cpu_percent"] == pytest.approx(100 * (0.4 + cpu[3] - cpu[0]) / now, abs=8)
    else:
        cores = [percent for name, percent in row.items() if CORE.fullmatch(name)]
        assert len(cores) == len(os.sched_getaffinity(0))
        assert row["cpu_percent"] == pytest.approx(min(100, np.mean(cores)))
