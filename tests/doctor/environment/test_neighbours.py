import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from imagenet_opt.doctor.environment import neighbours
from imagenet_opt.doctor.environment.neighbours import Neighbours, Occupancy, Occupant, check_swapping
from imagenet_opt.machine import usable_cpus

BURN = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\nimport sys; sys.stdin.read()\n"
CALM = Occupancy(10.0, 2.0, 0.0, 0.0, (Occupant("cron", 7, 2.0),))


ORPHAN = 'exec 3<&0; "$0" -c "$1" <&3 & echo $!'
"""A shell that leaves its child behind, which init then adopts."""


@contextmanager
def running(*command: str) -> Iterator[Iterator[str]]:
    """The lines that a process writes; it ends with the block."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        yield process.stdout
        process.stdin.close()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Neighbours:
    """Names all processes."""
    monkeypatch.setattr(neighbours, "_NUM_NAMED", 10_000)
    watched = Neighbours()
    watched.start()
    return watched


def test_our_work_and_that_of_our_children_does_not_count(measured: Neighbours) -> None:
    with running(sys.executable, "-c", BURN) as lines:
        assert next(lines) == "done\n"
        ours = {os.getpid(), *(child.pid for child in psutil.Process().children())}
        while time.process_time() < 0.2:
            pass
        occupancy = measured.stop()
    assert len(ours) > 1 and not ours & {occupant.pid for occupant in occupancy.top}


def test_another_process_is_named_with_its_share(measured: Neighbours) -> None:
    with running("sh", "-c", ORPHAN, sys.executable, BURN) as lines:
        pid = int(next(lines))
        assert next(lines) == "done\n"
        occupancy = measured.stop()
    (other,) = [occupant for occupant in occupancy.top if occupant.pid == pid]
    assert other.percent * usable_cpus() * occupancy.seconds / 100 == pytest.approx(0.5, abs=0.1)
    assert occupancy.others_cpu_percent > other.percent - 5


def test_a_process_that_no_user_can_end_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {1: 1.0, 9: 2.0, 7000: 3.0}
    commands = {1: ("init", ["/sbin/init"]), 9: ("kworker/0:1", []), 7000: ("blender", ["blender"])}

    def processes(_: list[str]) -> Iterator[SimpleNamespace]:
        for pid, (name, cmdline) in commands.items():
            times = SimpleNamespace(user=seconds[pid], system=0.0)
            info = {"cpu_times": times, "name": name, "cmdline": cmdline, "create_time": 0.0}
            yield SimpleNamespace(pid=pid, info=info)

    monkeypatch.setattr(psutil, "process_iter", processes)
    watched = Neighbours()
    watched.start()
    seconds |= {pid: before + 5 for pid, before in seconds.items()}
    assert [(occupant.name, occupant.pid) for occupant in watched.stop().top] == [("blender", 7000)]


def test_steal_and_swapping_are_the_growth_of_their_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    times = SimpleNamespace(user=0.0, nice=0.0, system=0.0, steal=100.0)
    swap = SimpleNamespace(sin=5_000_000, sout=0)
    moment = [50.0]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [times] * 64)
    monkeypatch.setattr(psutil, "swap_memory", lambda: swap)
    monkeypatch.setattr(neighbours, "monotonic", lambda: moment[0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(neighbours, "usable_cpus", lambda: 2)
    watched = Neighbours()
    watched.start()
    times.steal, swap.sout, moment[0] = 101.0, 35_000_000, 60.0
    occupancy = watched.stop()
    assert occupancy.steal_percent == pytest.approx(10.0)  # 1 s on each of 2 CPUs in 10 s
    assert occupancy.swapped_mb == pytest.approx(35.0) and check_swapping(occupancy, prefetch_factor=4).fired


def test_up_to_1_mb_per_second_of_swapping_does_not_fire() -> None:
    assert check_swapping(replace(CALM, swapped_mb=9.0), prefetch_factor=4).fired is False
    assert check_swapping(replace(CALM, swapped_mb=11.0), prefetch_factor=4).overrides == ("data.prefetch_factor=1",)


def test_fewer_batches_ahead_are_advised_only_if_workers_prepare_several() -> None:
    finding = check_swapping(replace(CALM, swapped_mb=11.0), prefetch_factor=1)
    assert finding.fired and not finding.overrides and "ahead" not in finding.remedy
