"""Checks of the machine and its storage. Each needs no experiment, or only a look at the GPU while it works."""

import shlex
from collections.abc import Callable

from imagenet_opt.doctor.evidence import SPARE_BATCHES, Evidence
from imagenet_opt.doctor.rule import Rule, Texts, hydrate, pack
from imagenet_opt.errors import printable
from imagenet_opt.machine import GIB
from imagenet_opt.measure.telemetry.gpu import GpuState

# Memory

_LOADERS = 2  # loaders of a process: the workers of training keep their batches while validation has its own workers
_BATCHES_SHARE = 0.5  # share of the free memory that batches may use


def _asked_bytes(e: Evidence) -> float:
    """Memory of the batches of all processes, with as many workers and batches ahead as the loader should have."""
    batches = e.setup.asked_workers * (e.setup.asked_prefetch + SPARE_BATCHES) * _LOADERS
    return e.setup.num_processes * batches * e.setup.batch_bytes


def _memory_check(
    name: str, free: Callable[[Evidence], int], what: str, remedy: str, commands: Callable[[int], Texts]
) -> Rule:
    """A check that the batches of all loaders fit into half of the free memory. commands: for a number of GiB."""

    def says(e: Evidence) -> str:
        setup, each = e.setup, f"{e.setup.num_processes} processes x " * (e.setup.num_processes > 1)
        need = f"{each}{setup.asked_workers} workers x {setup.asked_prefetch} batches ahead need up to "
        room = f"{_asked_bytes(e) / GIB:.2f} GiB; they may use {_BATCHES_SHARE:.0%} of the {free(e) / GIB:.2f} GiB"
        return f"{need}{room} {what}, and the loader uses {setup.num_workers} x {setup.prefetch_factor}"

    return Rule(
        name=name,
        when=lambda e: _asked_bytes(e) > _BATCHES_SHARE * free(e),
        says=says,
        remedy=remedy,
        commands=lambda e: commands(int(_asked_bytes(e) / _BATCHES_SHARE / GIB) + 1),
    )


SMALL_SHARED_MEMORY = _memory_check(
    "small_shared_memory",
    lambda e: e.host.free_shared_memory,
    "free in /dev/shm",
    "start the container with a larger --shm-size (Docker's default is 64 MiB), or with --ipc=host; in Kubernetes "
    "mount an emptyDir with medium: Memory at /dev/shm",
    lambda gib: (f"docker run --shm-size={gib}g ...", f"sudo mount -o remount,size={gib}G /dev/shm"),
)
SMALL_MEMORY = _memory_check(
    "small_memory",
    lambda e: e.host.available_memory,
    "of available memory",
    "request more memory (sbatch --mem, docker run --memory), or use fewer workers or batches ahead",
    lambda gib: (f"sbatch --mem={gib}G ...",),
)

# Storage

_FULL_RSIZE = 1 << 20
"""Bytes of a read request (mount option rsize): the largest that Linux supports, and its default, nfs(5)."""


def _page_cache_says(e: Evidence) -> str:
    share = min(1.0, e.page_cache_bytes / max(1.0, e.data_bytes))
    sizes = f"{e.data_bytes / GIB:.1f} GiB of training data, {e.page_cache_bytes / GIB:.1f} GiB of memory to cache it"
    if e.host.keeps_data_in_memory:
        return "the data is in memory already"
    if share == 1:
        return f"{sizes}: all of it stays in memory after one epoch"
    return f"{sizes}: {share:.0%} fits, so every epoch reads at least the rest from storage"


def _nfs_faults(e: Evidence) -> dict[str, str]:
    """Better option of an NFS mount -> what is wrong now. Source: nfs(5)."""
    if e.host.mount is None or not e.host.mount.kind.startswith("nfs"):
        return {}
    values = dict(option.split("=", 1) for option in e.host.mount.options if "=" in option)
    faults = {}
    if (rsize := int(values.get("rsize", _FULL_RSIZE))) < _FULL_RSIZE:
        faults[f"rsize={_FULL_RSIZE}"] = f"rsize={rsize}, requests of less than 1 MiB"
    if "nconnect" not in values and not values.get("proto", "tcp").startswith("rdma"):
        faults["nconnect=16"] = "one connection to the server (no nconnect)"
    return faults


def _nfs_says(e: Evidence) -> str:
    where = f"{e.host.mount.mountpoint} ({e.host.mount_kind})" if e.host.mount else "no mount"
    return printable(f"{where} is mounted with {', '.join(_nfs_faults(e).values()) or 'good options'}")


def _remount(e: Evidence) -> Texts:
    """Remounting changes only a few options of an NFS mount, nfs(5)."""
    point = shlex.quote(printable(e.host.mount.mountpoint if e.host.mount else ""))
    options = ",".join(_nfs_faults(e))
    return (f"sudo umount {point} && sudo mount -t {e.host.mount_kind} -o {options} SERVER:/PATH {point}",)


def _not_released(e: Evidence) -> str:
    if e.host.mount_kind != "lustre":
        return f"the data is not on Lustre but on {e.host.mount_kind}"
    return "the state of the files cannot be read" * (not e.host.checked_files)


def _faster_reads(e: Evidence) -> float:
    """Gain from data on a local disk, which the loader then reads as fast as from memory."""
    return e.reading_gain if e.is_slow_reading else 1.0


# The GPU

_APPLICATION = 0x02
_REASONS = {
    0x08: "hardware slowdown (heat, power brake or a fast power draw)",
    0x20: "software slowdown for heat",
    0x40: "hardware slowdown for heat",
    0x80: "power brake of the machine",
    _APPLICATION: "clocks set by an administrator",
}
"""Bit -> reason for lowered clocks; not the power limit, which is ordinary for a busy GPU. Source:
nvmlClocksEventReasons in NVIDIA's NVML API reference."""
_FULL_CLOCK = 0.98


def _gpu(e: Evidence) -> GpuState:
    return e.gpu or GpuState(index=0, name="no GPU")


def _unreported(e: Evidence, name: str) -> str:
    """Why a check of a value of NVML cannot be made."""
    if e.gpu is None:
        return "there is no CUDA GPU here, or NVML is missing"
    return f"{e.gpu.name} does not report this" * (getattr(e.gpu, name) is None)


def _reasons(e: Evidence) -> list[int]:
    """Bits that tell why the clocks are lowered. Application clocks at the maximum are what AWS advises."""
    lowered, clocks = _gpu(e).clock_reasons or 0, _gpu(e).clock_mhz
    if clocks is not None and clocks[0] >= _FULL_CLOCK * clocks[1]:
        lowered &= ~_APPLICATION
    return [bit for bit in _REASONS if bit & lowered]


def _clocks_say(e: Evidence) -> str:
    reasons = ", ".join(_REASONS[bit] for bit in _reasons(e))
    return f"the clocks of {_gpu(e).name} are {f'lowered by: {reasons}' if reasons else 'as usual under load'}"


def _clock_commands(e: Evidence) -> Texts:
    look = f"nvidia-smi -i {_gpu(e).index} -q -d TEMPERATURE,POWER,PERFORMANCE"
    reset = f"sudo nvidia-smi -i {_gpu(e).index} -rac"
    return (look, reset) if _APPLICATION in _reasons(e) else (look,)


def _others_say(e: Evidence) -> str:
    names = ", ".join(f"{printable(name)} (pid {pid}, {mib} MiB)" for pid, name, mib in _gpu(e).others or ())
    return f"other processes compute on {_gpu(e).name}: {names}" if names else f"{_gpu(e).name} has no other process"


def _rated_gain(e: Evidence) -> float | None:
    """Gain from a GPU as fast as others of its kind; None if the others' rate is unknown."""
    rated = e.setup.rated_images_per_second
    return e.gpu_gain(max(e.rate("gpu"), rated)) if rated else None


GPU_OTHERS = Rule(
    name="gpu_others",
    unknown=lambda e: _unreported(e, "others"),
    when=lambda e: bool(_gpu(e).others),
    says=_others_say,
    remedy="end these processes, or select another GPU with CUDA_VISIBLE_DEVICES",
    commands=lambda e: (f"ps -o pid,user,etime,args -p {','.join(str(pid) for pid, *_ in _gpu(e).others or ())}",),
    gain=_rated_gain,
)
ENVIRONMENT = (
    SMALL_SHARED_MEMORY,
    SMALL_MEMORY,
    Rule(
        name="page_cache",
        unknown=lambda e: "the local cache of a URL is on a disk" * (e.setup.cache is not None),
        # A page is often evicted before a shuffled epoch reads it again: with room for 35 % of the data, 15 % were hits
        # (Mohan et al., VLDB 2021).
        when=lambda e: e.page_cache_bytes < e.data_bytes and not e.host.keeps_data_in_memory,
        says=_page_cache_says,
        remedy="pack smaller images (about a sixth of ImageNet's size), onto a local disk if there is one; or use a "
        "machine with more memory",
        commands=lambda e: (pack(e, "max_side=256"),),
        gain=_faster_reads,
    ),
    Rule(
        name="mount_options",
        when=lambda e: bool(_nfs_faults(e)),
        says=_nfs_says,
        remedy="mount it with better options; use nconnect only if the server supports it",
        commands=_remount,
        gain=lambda e: None if e.is_slow_reading else 1.0,
    ),
    Rule(
        name="released_files",
        unknown=_not_released,
        when=lambda e: e.host.released_files > 0,
        says=lambda e: (
            f"{e.host.released_files} of {e.host.checked_files} checked files "
            f"({e.host.released_files / e.host.checked_files:.0%}) are released: their content is in the archive, and "
            "Lustre fetches it when the file is first read"
        ),
        remedy="fetch all files before training, many in parallel",
        commands=lambda e: (hydrate(e),),
        gain=_faster_reads,
    ),
    Rule(
        name="gpu_clocks",
        unknown=lambda e: _unreported(e, "clock_reasons"),
        when=lambda e: bool(_reasons(e)),
        says=_clocks_say,
        remedy="check cooling and power supply; reset application clocks that are below the maximum",
        commands=_clock_commands,
        gain=_rated_gain,
    ),
    GPU_OTHERS,
)
