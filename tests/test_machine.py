"""Resources that a process may use, under cgroups, SLURM and limits; mounts and versions."""

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from imagenet_opt import machine


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cgroup without limits, and no batch system."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_OWN_CGROUPS", tmp_path / "own")
    return tmp_path


def affinity(monkeypatch: pytest.MonkeyPatch, num: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(num)))


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_without_limits_the_cpus_of_the_affinity_are_usable(cgroup: Path) -> None:
    before = os.sched_getaffinity(0)
    assert machine.usable_cpus() == len(before)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert machine.usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("quota", "cpus"), [("350000", 3), ("30000", 1), ("unlimited", 64)])
def test_a_quota_counts_whole_cpus(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch, version: int, quota: str, cpus: int
) -> None:
    affinity(monkeypatch, 64)
    if version == 2:
        write(cgroup, cpu__max=f"{quota.replace('unlimited', 'max')} 100000")
    else:
        unlimited = quota.replace("unlimited", "-1")
        write(cgroup / "cpu", cpu__cfs_quota_us=unlimited, cpu__cfs_period_us="100000")
    assert machine.usable_cpus() == cpus


@pytest.mark.parametrize(("per_task", "cpus"), [("1", 1), ("3", 3), ("200", 64), ("", 64)])
def test_slurms_share_is_not_exceeded(cgroup: Path, monkeypatch: pytest.MonkeyPatch, per_task: str, cpus: int) -> None:
    affinity(monkeypatch, 64)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", per_task)
    assert machine.usable_cpus() == cpus


@pytest.mark.parametrize(
    ("slurm", "sharing"),
    [
        ({}, 4),
        ({"SLURM_NTASKS": "8", "SLURM_CPUS_PER_TASK": "6"}, 1),  # srun starts one task per process
        ({"SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "24"}, 4),  # one task per node, which starts four processes
        ({"SLURM_NTASKS": "8", "SLURM_CPUS_ON_NODE": "24"}, 1),  # each task is bound to 6 CPUs of the node
        ({"SLURM_NTASKS": "8", "SLURM_CPUS_ON_NODE": "6"}, 4),  # no task is bound
    ],
)
def test_tasks_of_slurm_with_separate_cpus_share_none(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch, slurm: dict[str, str], sharing: int
) -> None:
    """Eight processes, four on each of two nodes."""
    affinity(monkeypatch, 6)
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    assert machine.sharing_cpus(local_processes=4, world_size=8) == sharing


def test_page_cache_counts_as_available_under_both_versions_of_cgroups(cgroup: Path) -> None:
    assert machine.available_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    stat = "cache 1\ntotal_inactive_file 300"
    write(cgroup / "memory", memory__limit_in_bytes="1000", memory__usage_in_bytes="900", memory__stat=stat)
    assert machine.available_memory() == 400
    write(cgroup, memory__max="2000", memory__current="1500", memory__stat="file 1\ninactive_file 250")
    assert machine.available_memory() == 750


def test_limits_of_the_groups_above_apply_too(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    affinity(monkeypatch, 64)
    (cgroup / "own").write_text("4:cpu,cpuacct:/jobs/7\n0::/slice/job\n")
    (cgroup / "slice/job").mkdir(parents=True)
    write(cgroup / "slice", cpu__max="600000 100000")
    write(cgroup / "slice/job", cpu__max="max 100000", memory__max="max", memory__current="1", memory__stat="file 1")
    write(cgroup / "slice", memory__max="3000", memory__current="1000", memory__stat="file 1\ninactive_file 7")
    assert machine.cpu_limits() == {"affinity": 64, "cgroup quota": 6}
    assert machine.available_memory() == 2007
    (cgroup / "cpu/jobs/7").mkdir(parents=True)
    write(cgroup / "cpu/jobs/7", cpu__cfs_quota_us="400000", cpu__cfs_period_us="100000")
    assert machine.usable_cpus() == 4


def test_the_later_of_two_mounts_at_one_place_holds_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    places = (("/dev/vda", "/", "ext4"), ("/dev/vdb", "/fsx", "xfs"), ("10.0.0.1@tcp:/a", "/fsx", "lustre"))
    mounts = [SimpleNamespace(device=device, mountpoint=mountpoint, fstype=kind) for device, mountpoint, kind in places]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    lustre = machine.Mount("/fsx", "lustre", "10.0.0.1@tcp:/a")
    assert machine.find_mount("/fsx/imagenet") == lustre
    assert machine.mount_of("/fsx-other") == "/ (ext4)"
