"""The machine's columns against psutil's counters, and a training's against processes that really compute."""

import multiprocessing
import os
import time
from collections.abc import Iterator
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


def between(low: dict[str, float], value: dict[str, float], high: dict[str, float]) -> None:
    for name, expected in low.items():
        assert expected - 1e-6 <= value[name] <= high[name] + 1e-6, name


def test_counters_are_psutils() -> None:
    def theirs() -> dict[str, float]:
        cpus = psutil.cpu_times(percpu=True)
        network = psutil.net_io_counters(pernic=True)
        percent = {
            f"cpu{i}_percent": 100 * (c.user + c.nice + c.system + c.irq + c.softirq + c.steal)
            for i, c in enumerate(cpus)
            if i in os.sched_getaffinity(0)
        }
        received = {"network_received_mb_per_second": sum(n.bytes_recv for k, n in network.items() if k != "lo") / 1e6}
        return percent | (received if set(network) - {"lo"} else {})

    machine = Machine()
    between(theirs(), machine.counts(), theirs())


def test_disks_are_psutils_without_disks_that_use_others() -> None:
    def theirs() -> float:
        disks = (psutil.disk_io_counters(perdisk=True) or {}).items()
        use_others = ("loop", "ram", "zram", "dm-", "md")
        own = [disk for name, disk in disks if os.path.exists(f"/sys/block/{name}") and not name.startswith(use_others)]
        return sum(disk.read_bytes for disk in own) / 1e6

    if not psutil.disk_io_counters():
        pytest.skip("this machine has no counters of disks")
    before = theirs()
    assert before <= Machine().counts()["disk_read_mb_per_second"] <= theirs()


def test_memory_is_psutils() -> None:
    memory = psutil.virtual_memory()
    levels = Machine().levels()
    assert levels["memory_used_gib"] == pytest.approx((memory.total - memory.available) / 2**30, abs=0.3)
    assert 0 < levels["page_cache_gib"] <= memory.total / 2**30


@pytest.mark.parametrize("child", [(0.3, "pt_data_worker")], indirect=True)
def test_a_worker_is_found_counted_and_forgotten(child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagenet_opt.measure.telemetry.proc_counters._SLOW_SECONDS", 0.0)
    process, done = child
    training = Training()
    before = training.counts()["workers_cpu_percent"]
    assert (before, training.levels()) == (0.0, {"num_workers": 0.0})
    process.start()
    until = time.monotonic() + 30
    while training.levels() == {"num_workers": 0.0}:
        training.counts()
        assert time.monotonic() < until
    first = psutil.Process(process.pid).cpu_times()
    assert done.wait(30)
    counted = training.counts()["workers_cpu_percent"]
    assert 30 - 100 * (first.user + first.system) - 3 <= counted <= 60
    process.kill()
    process.join()
    assert training.counts()["workers_cpu_percent"] == counted
    assert training.levels() == {"num_workers": 0.0}


@pytest.mark.parametrize("child", [(0.0, "wandb-core")], indirect=True)
def test_other_children_are_no_workers(child) -> None:
    process, done = child
    process.start()
    assert done.wait(30)
    training = Training()
    training.counts()
    assert training.levels() == {"num_workers": 0.0}


def test_rates_are_over_the_time_between_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are two seconds apart on an injected clock; the CPU time is the kernel's."""
    now = 0.0
    monkeypatch.setattr("imagenet_opt.measure.telemetry.proc_counters.monotonic", lambda: now)
    cpu = [time.process_time()]
    host = HostColumns()
    cpu.append(time.process_time())
    compute(0.3)
    cpu.append(time.process_time())
    now = 2.0
    row = host.row()
    cpu.append(time.process_time())
    assert cpu[2] - cpu[1] <= row["trainer_cpu_percent"] / 100 * now <= cpu[3] - cpu[0]
    cores = [percent for name, percent in row.items() if CORE.fullmatch(name)]
    assert len(cores) == len(os.sched_getaffinity(0))
    assert row["cpu_percent"] == pytest.approx(min(100, np.mean(cores)))


@pytest.mark.parametrize("child", [(0.4, "a program")], indirect=True)
def test_under_a_smaller_share_only_the_process_and_its_children_count(child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    now = 0.0
    monkeypatch.setattr("imagenet_opt.measure.telemetry.proc_counters.monotonic", lambda: now)
    process, done = child
    own = time.process_time()
    host = HostColumns()
    process.start()
    assert done.wait(30)
    now = 1.0
    percent, own = host.row()["cpu_percent"], time.process_time() - own
    assert percent == pytest.approx(100 * (0.4 + own), abs=8)
