"""Checks of the machine and its storage. Each needs no experiment, or only a look at the GPU while it works."""

from imagenet_opt.doctor.commands import Texts, hydrate, pack
from imagenet_opt.doctor.diagnosis import Rule
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.errors import printable
from imagenet_opt.machine import GIB
from imagenet_opt.measure.telemetry.gpu import GpuState

# Memory

_SPARE_BATCHES = 3  # batches of a worker in addition to the batches ahead: one being made, one being sent, one in use
_LOADERS = 2  # loaders of a process: the workers of training keep their batches while validation has its own workers
_BATCHES_SHARE = 0.5  # share of the free memory that batches may use


def _asked_bytes(e: Evidence) -> float:
    """Memory of the batches of all processes, with as many workers and batches ahead as the loader should have."""
    batches = e.setup.asked_workers * (e.setup.asked_prefetch + _SPARE_BATCHES) * _LOADERS
    return e.setup.num_processes * batches * e.setup.batch_bytes


def _free_bytes(e: Evidence) -> int:
    """Batches are in shared memory, which is a part of the machine's memory."""
    return min(e.host.free_shared_memory, e.host.available_memory)


def _lacks_shared(e: Evidence) -> bool:
    return e.host.free_shared_memory < e.host.available_memory


def _memory_says(e: Evidence) -> str:
    setup, each = e.setup, f"{e.setup.num_processes} processes x " * (e.setup.num_processes > 1)
    need = f"{each}{setup.asked_workers} workers x {setup.asked_prefetch} batches ahead need up to "
    room = f"{_asked_bytes(e) / GIB:.2f} GiB; they may use {_BATCHES_SHARE:.0%} of the {_free_bytes(e) / GIB:.2f} GiB "
    place = "free in /dev/shm" if _lacks_shared(e) else "of available memory"
    return f"{need}{room}{place}, and the loader uses {setup.num_workers} x {setup.prefetch_factor}"


def _memory_commands(e: Evidence) -> Texts:
    gib = int(_asked_bytes(e) / _BATCHES_SHARE / GIB) + 1
    if _lacks_shared(e):
        return (f"docker run --shm-size={gib}g ...", f"sudo mount -o remount,size={gib}G /dev/shm")
    return (f"sbatch --mem={gib}G ...",)


SMALL_MEMORY = Rule(
    name="small_memory",
    when=lambda e: _asked_bytes(e) > _BATCHES_SHARE * _free_bytes(e),
    says=_memory_says,
    remedy=lambda e: (
        "start the container with a larger --shm-size (Docker's default is 64 MiB), or with --ipc=host; in Kubernetes "
        "mount an emptyDir with medium: Memory at /dev/shm"
        if _lacks_shared(e)
        else "request more memory (sbatch --mem, docker run --memory), or use fewer workers or batches ahead"
    ),
    commands=_memory_commands,
)


def data_bytes(e: Evidence) -> float:
    return e.mb_per_image * 1e6 * e.setup.num_samples


def page_cache_bytes(e: Evidence) -> float:
    """Memory that is left for the page cache while all processes of this machine train."""
    batches = e.setup.num_workers * (e.setup.prefetch_factor + _SPARE_BATCHES) * e.setup.batch_bytes
    return max(0.0, e.host.available_memory - e.setup.num_processes * batches)


def _page_cache_says(e: Evidence) -> str:
    if e.host.keeps_data_in_memory:
        return "the data is in memory already"
    share = min(1.0, page_cache_bytes(e) / max(1.0, data_bytes(e)))
    sizes = f"{data_bytes(e) / GIB:.1f} GiB of training data, {page_cache_bytes(e) / GIB:.1f} GiB of memory to cache it"
    if share == 1:
        return f"{sizes}: all of it stays in memory after one epoch"
    return f"{sizes}: {share:.0%} fits, so every epoch reads at least the rest from storage"


def _not_released(e: Evidence) -> str:
    if e.host.mount_kind != "lustre":
        return f"the data is not on Lustre but on {e.host.mount_kind}"
    return "the state of the files cannot be read" * (not e.host.checked_files)


# The GPU

_REASONS = {
    0x08: "hardware slowdown (heat, power brake or a fast power draw)",
    0x20: "software slowdown for heat",
    0x40: "hardware slowdown for heat",
    0x80: "power brake of the machine",
}
"""Bit -> reason for lowered clocks; not the power limit, which is ordinary for a busy GPU, nor clocks that an
administrator has set. Source: nvmlClocksEventReasons in NVIDIA's NVML API reference."""


def _gpu(e: Evidence) -> GpuState:
    return e.gpu or GpuState(index=0, name="no GPU")


def _unreported(e: Evidence, name: str) -> str:
    """Why a check of a value of NVML cannot be made."""
    if e.gpu is None:
        return "there is no CUDA GPU here, or NVML is missing"
    return f"{e.gpu.name} does not report this" * (getattr(e.gpu, name) is None)


def _clocks_say(e: Evidence) -> str:
    reasons = ", ".join(reason for bit, reason in _REASONS.items() if bit & (_gpu(e).clock_reasons or 0))
    return f"the clocks of {_gpu(e).name} are {f'lowered by: {reasons}' if reasons else 'as usual under load'}"


def _others_say(e: Evidence) -> str:
    names = ", ".join(f"{printable(name)} (pid {pid}, {mib} MiB)" for pid, name, mib in _gpu(e).others or ())
    return f"other processes compute on {_gpu(e).name}: {names}" if names else f"{_gpu(e).name} has no other process"


GPU_OTHERS = Rule(
    name="gpu_others",
    unknown=lambda e: _unreported(e, "others"),
    when=lambda e: bool(_gpu(e).others),
    says=_others_say,
    remedy="end these processes, or select another GPU with CUDA_VISIBLE_DEVICES",
    commands=lambda e: (f"ps -o pid,user,etime,args -p {','.join(str(pid) for pid, *_ in _gpu(e).others or ())}",),
)
ENVIRONMENT = (
    SMALL_MEMORY,
    Rule(
        name="page_cache",
        unknown=lambda e: "the local cache of a URL is on a disk" * (e.setup.cache_room is not None),
        # A page is often evicted before a shuffled epoch reads it again: with room for 35 % of the data, 15 % were hits
        # (Mohan et al., VLDB 2021).
        when=lambda e: page_cache_bytes(e) < data_bytes(e) and not e.host.keeps_data_in_memory,
        says=_page_cache_says,
        remedy="pack smaller images (about a sixth of ImageNet's size), onto a local disk if there is one; or use a "
        "machine with more memory",
        commands=lambda e: (pack(e, "max_side=256"),),
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
    ),
    Rule(
        name="gpu_clocks",
        unknown=lambda e: _unreported(e, "clock_reasons"),
        when=lambda e: any(bit & (_gpu(e).clock_reasons or 0) for bit in _REASONS),
        says=_clocks_say,
        remedy="check cooling and power supply",
        commands=lambda e: (f"nvidia-smi -i {_gpu(e).index} -q -d TEMPERATURE,POWER,PERFORMANCE",),
    ),
    GPU_OTHERS,
)
