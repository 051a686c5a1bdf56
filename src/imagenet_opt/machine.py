"""What this machine really offers: usable CPUs, memory, shared memory, versions."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

GIB = 2**30
_CGROUP = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """CPUs that this process may really use: the least of affinity, cgroup quota and SLURM's share.

    `os.cpu_count()` counts the machine's; a batch job is often bound to far fewer.
    """
    limits = [len(os.sched_getaffinity(0))]
    if (quota := _cgroup_cpu_quota()) is not None:
        limits.append(max(1, int(quota)))
    if (slurm := os.environ.get("SLURM_CPUS_PER_TASK", "")).isdigit():
        limits.append(max(1, int(slurm)))
    return min(limits)


def sharing_cpus(*, local_processes: int, world_size: int) -> int:
    """Of a run's processes on this machine, how many share what `usable_cpus` says.

    1 where srun starts each as a task of its own with CPUs of its own (--cpus-per-task, or bound to them), else all.
    """
    if os.environ.get("SLURM_NTASKS") != str(world_size):
        return local_processes
    node = os.environ.get("SLURM_CPUS_ON_NODE", "")
    bound = node.isdigit() and len(os.sched_getaffinity(0)) < int(node)
    return 1 if bound or "SLURM_CPUS_PER_TASK" in os.environ else local_processes


def _cgroup_cpu_quota() -> float | None:
    """CPUs allowed by cgroup v2 `cpu.max`, or v1 `cfs_quota_us`; None when unlimited."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (_CGROUP / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (_CGROUP / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def available_memory() -> int:
    """Bytes of RAM that new allocations may take: what is free or mere page cache now, within the cgroup's limit."""
    free: int = psutil.virtual_memory().available
    for folder, limit, used, cached in (
        (_CGROUP, "memory.max", "memory.current", "inactive_file"),
        (_CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            room = int((folder / limit).read_text()) - int((folder / used).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # another version of cgroups, or "max"
            continue
        return min(free, max(0, room + int(stat.get(cached, 0))))
    return free


def free_shared_memory() -> int:
    """Free bytes of /dev/shm, through which loader workers hand over batches; RAM where there is none."""
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return available_memory()


def mount_of(path: str) -> str:
    """Mount point that holds `path` and its file system, such as "/fsx (lustre)"."""
    mounts = [m for m in psutil.disk_partitions(all=True) if f"{path}/".startswith(m.mountpoint.rstrip("/") + "/")]
    found = max(mounts, key=lambda mount: len(mount.mountpoint), default=None)
    return "an unknown mount" if found is None else f"{found.mountpoint} ({found.fstype})"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide speed, by name."""
    names = ("torch", "torchvision", "lightning", "timm", "nvidia-nvimgcodec-cu13", "numpy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found
