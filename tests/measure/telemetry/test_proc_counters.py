"""Columns of the machine, and of a training against processes that really compute."""

import math
import os
from pathlib import Path

import pytest

from imagenet_opt.measure.telemetry import proc_counters
from imagenet_opt.measure.telemetry.proc_counters import Machine

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
