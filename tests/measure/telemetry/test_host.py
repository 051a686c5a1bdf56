import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from imagenet_opt.measure.telemetry.host import host_readings

BURN = """
import time
print("ready", flush=True)
input()
while time.process_time() < {seconds}: pass
print("done", flush=True)
input()
"""


def cpu(busy: float) -> SimpleNamespace:
    """One CPU's counters; a sixth of `busy` in each kind of work. `guest` is part of `user` already."""
    busy_kinds = dict.fromkeys(("user", "nice", "system", "irq", "softirq", "steal"), busy / 6)
    return SimpleNamespace(**busy_kinds, idle=7.0, iowait=9.0, guest=busy / 6)


def test_cpu_percent_is_the_busy_share_of_the_process_own_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = iter([[cpu(50.0), cpu(100.0)], [cpu(90.0), cpu(100.6)], [cpu(95.0), cpu(102.6)]])
    clock = iter([1000.0, 1002.0, 1004.0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1})
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(counters))
    monkeypatch.setattr("imagenet_opt.measure.telemetry.host.monotonic", lambda: next(clock))
    readings = host_readings()
    percent = [next(readings)["cpu_percent"] for _ in range(3)]
    assert percent == [None, pytest.approx(100 * 0.6 / 2), pytest.approx(100 * 2.0 / 2)]


def test_under_a_smaller_share_only_the_process_and_its_children_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    now = 0.0
    monkeypatch.setattr("imagenet_opt.measure.telemetry.host.monotonic", lambda: now)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [cpu(10 * now), cpu(10 * now)])
    command = [sys.executable, "-c", BURN.format(seconds=0.4)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin and child.stdout
        child.stdout.readline()
        readings = host_readings()
        next(readings)
        own, before = _cpu_seconds(child.pid), os.times()
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        own, after, now = _cpu_seconds(child.pid) - own, os.times(), 1.0
        percent = next(readings)["cpu_percent"]
        child.communicate("\n")
        used = own + after.user - before.user + after.system - before.system
    assert percent == pytest.approx(100 * used, abs=8)


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_memory_used_is_total_minus_available(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(total=64 * 2**30, available=40 * 2**30, used=20 * 2**30, free=2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert next(host_readings())["memory_used_gib"] == 24.0
