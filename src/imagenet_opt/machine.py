"""Resources of this machine that a process can use: CPUs, memory, shared memory, open files; mounts and versions."""

import os
import platform
import resource
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from imagenet_opt import __version__

GIB = 2**30
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_OPEN_FILES = 2**16
"""Enough for batches in flight (two files each, up to thousands of batches), reads in flight, libraries and logs."""


@dataclass(frozen=True)
class Mount:
    """kind: type of the file system, such as "lustre"."""

    mountpoint: str
    kind: str
    device: str


def usable_cpus() -> int:
    """CPUs that this process may use: the smallest of affinity, cgroup quota and SLURM's share.

    `os.cpu_count()` counts all CPUs of the machine; a batch job often has far fewer.
    """
    return min(cpu_limits().values())


def cpu_limits() -> dict[str, int]:
    """Name of each limit that is set -> CPUs: "affinity", "cgroup quota", "SLURM_CPUS_PER_TASK"."""
    limits = {"affinity": len(os.sched_getaffinity(0))}
    if (quota := _cgroup_cpu_quota()) is not None:
        limits["cgroup quota"] = max(1, int(quota))
    if (slurm := os.environ.get("SLURM_CPUS_PER_TASK", "")).isdigit():
        limits["SLURM_CPUS_PER_TASK"] = max(1, int(slurm))
    return limits


def sharing_cpus(*, local_processes: int, world_size: int) -> int:
    """Number of a run's processes on this machine that share the CPUs of `usable_cpus`.

    1 if srun starts each process as a separate task with its own CPUs (--cpus-per-task, or binding), else all.
    """
    if os.environ.get("SLURM_NTASKS") != str(world_size):
        return local_processes
    node = os.environ.get("SLURM_CPUS_ON_NODE", "")
    bound = node.isdigit() and len(os.sched_getaffinity(0)) < int(node)
    return 1 if bound or "SLURM_CPUS_PER_TASK" in os.environ else local_processes


def _cgroup_cpu_quota() -> float | None:
    """CPUs allowed by cgroup v2 `cpu.max`, or v1 `cfs_quota_us`, of this group or a group above; None if unlimited."""
    quotas = []
    files = (("", "cpu.max", "cpu.max"), ("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
    for controller, quota_name, period_name in files:
        for group in _cgroups(controller):
            try:
                quota = (group / quota_name).read_text().split()[0]
                period = (group / period_name).read_text().split()[-1]
            except (OSError, IndexError):
                continue
            if quota.isdigit() and period.isdigit():
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def available_memory() -> int:
    """Bytes of RAM that new allocations may take now: free memory and page cache, within the limits of cgroups."""
    free: int = psutil.virtual_memory().available
    for controller, limit, used, cached in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        rooms = []
        for group in _cgroups(controller):
            try:
                room = int((group / limit).read_text()) - int((group / used).read_text())
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):  # the other version of cgroups, or "max"
                continue
            rooms.append(max(0, room + int(stat.get(cached, 0))))
        if rooms:
            return min(free, *rooms)
    return free


def _cgroups(controller: str) -> list[Path]:
    """Folders of this process's group and of all groups above, whose limits apply too. controller: of v1; "" for v2.

    A container that sees only its own cgroups has the highest folder alone, with the container's limits.
    """
    highest = _CGROUP / controller
    try:
        lines = [line.split(":", 2) for line in _OWN_CGROUPS.read_text().splitlines()]
    except OSError:
        return [highest]
    path = next((path for _, names, path in lines if controller in names.split(",")), "/")
    group = highest / path.lstrip("/")
    return [group, *group.parents[: len(group.parts) - len(highest.parts)]]


def free_shared_memory() -> int:
    """Free bytes of /dev/shm, through which loader workers pass batches; available RAM if /dev/shm does not exist."""
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return available_memory()


def allow_open_files(num_files: int = 0) -> None:
    """Raise the limit of open files of this process and its children to 65,536, or to `num_files` if this is more.

    The hard limit bounds the new limit. A higher present limit stays.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(num_files, _OPEN_FILES)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has another, lower bound
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def mount_of(path: str) -> str:
    """Mount point that holds `path` and its file system, such as "/fsx (lustre)"; the bucket or server of a URL."""
    if "://" in path:
        return "/".join(path.split("/")[:3])
    mount = find_mount(path)
    return "an unknown mount" if mount is None else f"{mount.mountpoint} ({mount.kind})"


def find_mount(path: str) -> Mount | None:
    """The mount that holds `path`. The function follows no link and does not access the storage."""
    mounts = [m for m in psutil.disk_partitions(all=True) if f"{path}/".startswith(m.mountpoint.rstrip("/") + "/")]
    mount = max(reversed(mounts), key=lambda mount: len(mount.mountpoint), default=None)  # a later mount hides others
    return mount and Mount(mount.mountpoint, mount.fstype, mount.device)


def is_lustre(folder: Path) -> bool:
    mount = find_mount(str(folder))
    return mount is not None and mount.kind == "lustre"


def facts() -> dict[str, Any]:
    """Facts about this machine that decide speed, and its present load; call the function before a measurement."""
    import torch

    return {
        "cpu": cpu_name(),
        "usable_cpus": usable_cpus(),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
        "busy_percent_before": psutil.cpu_percent(1.0),
    }


def cpu_name() -> str:
    """The kernel's name of the CPU; without a name the architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def hardware(data_root: str, *, on_gpu: bool) -> dict[str, str]:
    """RAM and the storage of the data; with a GPU also CUDA, and the driver if NVML knows it."""
    facts = {"memory": f"{psutil.virtual_memory().total / GIB:.0f} GiB", "storage": mount_of(data_root)}
    if on_gpu:
        import pynvml
        import torch

        facts["CUDA"] = str(torch.version.cuda)
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            facts["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
            pynvml.nvmlShutdown()
    return facts


def versions() -> dict[str, str]:
    """Name -> version, of Python, of this program and of the packages that decide speed."""
    names = ("torch", "torchvision", "lightning", "timm", "nvidia-nvimgcodec-cu13", "numpy")
    facts = {"python": platform.python_version(), "imagenet-opt": __version__}
    for name in names:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = "absent"
    if commit := _commit():
        facts["imagenet-opt"] += f" ({commit})"
    return facts


def _commit() -> str | None:
    """Commit of the checkout that contains this code, with "-dirty" after changes; None for an installed package, and
    without git."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, check=True, text=True, timeout=10).stdout.strip()
    return None
