"""Checks of the machine and its storage. Each needs no experiment, or only a look at the GPU while it works."""

from imagenet_opt.doctor.commands import Texts, hydrate, pack
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.rule import Rule
from imagenet_opt.errors import printable
from imagenet_opt.machine import GIB
from imagenet_opt.measure.telemetry.gpu import GpuState

# Memory


def _memory_says(e: Evidence) -> str:
    setup, budget = e.setup, e.setup.budget
    processes = f"{setup.num_processes} processes x " if setup.num_processes > 1 else ""
    place = "free /dev/shm" if budget.in_shared_memory else "available memory"
    return (
        f"{processes}{budget.asked_workers} workers x {budget.asked_prefetch} batches ahead need up to "
        f"{budget.needed / GIB:.2f} GiB; they may use {budget.allowed / GIB:.2f} GiB, half of the {place}, and the "
        f"loader uses {setup.num_workers} x {setup.prefetch_factor}"
    )


def _memory_commands(e: Evidence) -> Texts:
    gib = e.setup.budget.sufficient // GIB + 1
    if e.setup.budget.in_shared_memory:
        return (f"docker run --shm-size={gib}g ...", f"sudo mount -o remount,size={gib}G /dev/shm")
    return (f"sbatch --mem={gib}G ...",)


SMALL_MEMORY = Rule(
    name="small_memory",
    when=lambda e: e.setup.budget.needed > e.setup.budget.allowed,
    says=_memory_says,
    remedy=lambda e: (
        "start the container with a larger --shm-size (Docker's default is 64 MiB), or with --ipc=host; in Kubernetes "
        "mount an emptyDir with medium: Memory at /dev/shm"
        if e.setup.budget.in_shared_memory
        else "request more memory (sbatch --mem, docker run --memory), or use fewer workers or batches ahead"
    ),
    commands=_memory_commands,
)


def _page_cache_says(e: Evidence) -> str:
    if e.host.keeps_data_in_memory:
        return "the data is in memory already"
    share = min(1.0, e.page_cache_bytes / max(1.0, e.data_bytes))
    sizes = f"{e.data_bytes / GIB:.1f} GiB of training data, {e.page_cache_bytes / GIB:.1f} GiB of memory to cache it"
    if share == 1:
        return f"{sizes}: all of it stays in memory after one epoch"
    return f"{sizes}: {share:.0%} fits, so every epoch reads at least the rest from storage"


def _not_released(e: Evidence) -> str:
    if e.host.mount_kind != "lustre":
        return f"the data is not on Lustre but on {e.host.mount_kind}"
    return "" if e.host.checked_files else "the state of the files cannot be read"


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
    return f"{e.gpu.name} does not report this" if getattr(e.gpu, name) is None else ""


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
        unknown=lambda e: "" if e.setup.cache_room is None else "the local cache of a URL is on a disk",
        # A page is often evicted before a shuffled epoch reads it again: with room for 35 % of the data, 15 % were hits
        # (Mohan et al., VLDB 2021).
        when=lambda e: e.page_cache_bytes < e.data_bytes and not e.host.keeps_data_in_memory,
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
