"""Checks of the machine and the configuration. Each needs no experiment, or only a look at the GPU while it works."""

from collections.abc import Callable

from imagenet_opt.doctor.environment_storage import STORAGE_CHECKS, faster_reads
from imagenet_opt.doctor.evidence import BATCHES_SHARE, Evidence
from imagenet_opt.doctor.rule import Rule, Texts, data_place, more_cpus, more_memory, more_memory_commands, sets_cpus
from imagenet_opt.errors import printable
from imagenet_opt.machine import GIB
from imagenet_opt.measure.telemetry.gpu import GpuState

# CPUs and memory


def _binding(e: Evidence) -> list[str]:
    """The limits that allow the fewest CPUs."""
    return [name for name, cpus in e.host.cpu_limits.items() if cpus == e.host.usable_cpus]


def _cpu_says(e: Evidence) -> str:
    usable, installed, limits = e.host.usable_cpus, e.host.installed_cpus, e.host.cpu_limits.items()
    if usable >= installed:
        return f"this job may use all {installed} CPUs"
    wider = "".join(f", {name} allows {cpus}" for name, cpus in limits if usable < cpus < installed)
    return f"this job may use {usable} of {installed} CPUs, because of {' and '.join(_binding(e))}{wider}"


def _cpu_remedy(e: Evidence) -> str:
    """Sources: sbatch(1), without --cpus-per-task a task gets one CPU; docker run, --cpus, --cpuset-cpus."""
    slurm, node = e.host.slurm, e.host.slurm.get("SLURM_CPUS_ON_NODE", "")
    room = f"; SLURM gave this job {node} CPUs of the node" if node.isdigit() else ""
    missing = "" if "SLURM_CPUS_PER_TASK" in slurm else "; without it, as in this job, a task gets one CPU"
    remedies = {
        "docker": "give the container more CPUs (docker run --cpus, limits.cpu in Kubernetes, CPUQuota= of systemd)",
        "sbatch": f"request more CPUs from SLURM with --cpus-per-task{missing}{room}",
        "taskset": "start the run without taskset or numactl, or with more CPUs; start a container with a wider "
        "--cpuset-cpus",
    }
    by = (sets_cpus(limit, in_slurm=e.host.in_slurm) for limit in _binding(e))
    return "; ".join(dict.fromkeys(remedies[program] for program in by))


def _cpu_commands(e: Evidence) -> Texts:
    binding = _binding(e)
    return tuple(dict.fromkeys(more_cpus(limit, e.host.installed_cpus, in_slurm=e.host.in_slurm) for limit in binding))


def _memory_check(name: str, free: Callable[[Evidence], int], what: str, *, shared: bool) -> Rule:
    """A check that the batches of all loaders fit into half of the free memory."""

    def lacks(e: Evidence) -> bool:
        return e.asked_bytes > BATCHES_SHARE * free(e)

    def says(e: Evidence) -> str:
        setup, each = e.setup, f"{e.setup.num_processes} processes x " * (e.setup.num_processes > 1)
        need = f"{each}{setup.asked_workers} workers x {setup.asked_prefetch} batches ahead need up to "
        need += f"{e.asked_bytes / GIB:.2f} GiB, {'more' if lacks(e) else 'not more'} than {BATCHES_SHARE:.0%} of the "
        uses = f"; the loader uses {setup.num_workers} x {setup.prefetch_factor}" * lacks(e)
        return f"{need}{free(e) / GIB:.2f} GiB {what}{uses}"

    def commands(e: Evidence) -> Texts:
        return more_memory_commands(e.asked_bytes / BATCHES_SHARE, shared=shared)

    return Rule(name=name, when=lacks, says=says, remedy=more_memory(shared=shared), commands=commands)


def _page_cache_says(e: Evidence) -> str:
    share = min(1.0, e.page_cache_bytes / max(1.0, e.data_bytes))
    sizes = f"{e.data_bytes / GIB:.1f} GiB of training data, {e.page_cache_bytes / GIB:.1f} GiB of memory to cache it"
    if e.host.mount_kind == "memory":
        return "the data is in memory already"
    if share == 1:
        return f"{sizes}: all of it stays in memory after one epoch"
    return f"{sizes}: {share:.0%} fits, so every epoch reads at least the rest from storage"


CPU_LIMITS = Rule(
    name="cpu_limits",
    when=lambda e: e.host.usable_cpus < e.host.installed_cpus,
    says=_cpu_says,
    remedy=_cpu_remedy,
    commands=_cpu_commands,
    gain=lambda e: e.cpus_gain if e.is_short_of_cpu else 1.0,
)
SMALL_SHARED_MEMORY = _memory_check(
    "small_shared_memory", lambda e: e.host.free_shared_memory, "free in /dev/shm", shared=True
)
SMALL_MEMORY = _memory_check("small_memory", lambda e: e.host.available_memory, "of available memory", shared=False)
_OF_MACHINE = (
    CPU_LIMITS,
    SMALL_SHARED_MEMORY,
    SMALL_MEMORY,
    Rule(
        name="page_cache",
        unknown=lambda e: "the local cache of a URL is on a disk" * (e.setup.cache is not None),
        # A page is often evicted before a shuffled epoch reads it again: with room for 35 % of the data, 15 % were hits
        # (Mohan et al., VLDB 2021).
        when=lambda e: e.page_cache_bytes < e.data_bytes and e.host.mount_kind != "memory",
        says=_page_cache_says,
        remedy="pack smaller images (about a sixth of ImageNet's size), onto a local disk if there is one; or use a "
        "machine with more memory",
        commands=lambda e: (data_place(e).pack("max_side=256"),),
        gain=faster_reads,
    ),
)

# The GPU

_POWER, _APPLICATION = 0x04, 0x02
_COOLING = "check its cooling: air flow, fans, neighbouring boards"
_REASONS = {
    0x08: ("hardware slowdown (heat, power brake or a fast power draw)", "check its cooling and its power supply"),
    0x20: ("software slowdown for heat", _COOLING),
    0x40: ("hardware slowdown for heat", _COOLING),
    0x80: ("power brake of the machine", "check the machine's power supply"),
    _POWER: ("power limit", "raise the power limit, if the board allows more"),
    _APPLICATION: ("clocks set by an administrator", "reset the application clocks"),
}
"""Bit -> reason for lowered clocks, and the remedy. Source: nvmlClocksEventReasons in NVIDIA's NVML API reference."""
_COMMANDS = {_POWER: "sudo nvidia-smi -i {index} -pl WATTS", _APPLICATION: "sudo nvidia-smi -i {index} -rac"}
_LOOK = "nvidia-smi -i {index} -q -d TEMPERATURE,POWER,PERFORMANCE"
_FULL_CLOCK = 0.98
_TF32_CAPABILITY = (8, 0)
"""Ampere, the first GPUs with TF32."""
_MUCH_MB_PER_SECOND = 1.0


def _no_gpu(e: Evidence) -> str:
    return "there is no CUDA GPU here" * (not e.setup.has_gpu)


def _gpu(e: Evidence) -> GpuState:
    assert e.gpu is not None, "see _unreported"
    return e.gpu


def _unreported(e: Evidence, *names: str) -> str:
    """Why a check of NVML's values cannot be made."""
    if e.gpu is None:
        return "there is no CUDA GPU here, or NVML is missing"
    return f"{e.gpu.name} does not report this" * any(getattr(e.gpu, name) is None for name in names)


def _reasons(e: Evidence) -> list[int]:
    """Bits that tell why the clocks are lowered. The power limit is ordinary for a busy GPU, and application clocks at
    the GPU's maximum are what AWS advises (nvidia-smi -ac)."""
    lowered, clocks = _gpu(e).clock_reasons or 0, _gpu(e).clock_mhz
    if clocks is not None and clocks[0] >= _FULL_CLOCK * clocks[1]:
        lowered &= ~_APPLICATION
    bits = [bit for bit in _REASONS if bit & lowered]
    return [] if bits == [_POWER] else bits


def _clocks_say(e: Evidence) -> str:
    reasons = ", ".join(_REASONS[bit][0] for bit in _reasons(e))
    return f"the clocks of {_gpu(e).name} are {f'lowered by: {reasons}' if reasons else 'as usual under load'}"


def _clock_commands(e: Evidence) -> Texts:
    return tuple(dict.fromkeys(_COMMANDS.get(bit, _LOOK).format(index=_gpu(e).index) for bit in _reasons(e)))


def _others_say(e: Evidence) -> str:
    names = ", ".join(f"{printable(name)} (pid {pid}, {mib} MiB)" for pid, name, mib in _gpu(e).others or ())
    if not names:
        return f"no other process computes on {_gpu(e).name}"
    return f"other processes compute on {_gpu(e).name}: {names}"


def _gpu_gain(e: Evidence) -> float | None:
    """Gain from a GPU as fast as others of its kind; None if the others' rate is unknown."""
    rated = e.setup.rated_images_per_second
    return e.gpu_gain(max(e.rate("gpu"), rated)) if rated else None


def _has_tf32(e: Evidence) -> bool:
    return (e.setup.capability or (0, 0)) >= _TF32_CAPABILITY


GPU_OTHERS = Rule(
    name="gpu_others",
    unknown=lambda e: _unreported(e, "others"),
    when=lambda e: bool(_gpu(e).others),
    says=_others_say,
    remedy="end these processes, or select another GPU with CUDA_VISIBLE_DEVICES",
    commands=lambda e: (f"ps -o pid,user,etime,args -p {','.join(str(pid) for pid, *_ in _gpu(e).others or ())}",),
    gain=_gpu_gain,
)
_OF_GPU = (
    Rule(
        name="gpu_clocks",
        unknown=lambda e: _unreported(e, "clock_reasons"),
        when=lambda e: bool(_reasons(e)),
        says=_clocks_say,
        remedy=lambda e: "; ".join(dict.fromkeys(_REASONS[bit][1] for bit in _reasons(e))),
        commands=_clock_commands,
        gain=_gpu_gain,
    ),
    GPU_OTHERS,
    # cuDNN's tensor-core convolutions take NHWC. Source: NVIDIA, Convolutional Layers User's Guide, section Tensor
    # Layouts In Memory.
    Rule(
        name="channels_last",
        unknown=_no_gpu,
        when=lambda e: not e.configured("callbacks.acceleration.channels_last", False),
        says=lambda e: "tensor cores do not accept images and weights in NCHW order: each convolution converts them",
        remedy="keep images and weights in channels_last order",
        overrides=lambda e: ("callbacks.acceleration.channels_last=true",),
    ),
    # Source: PyTorch's CUDA semantics, TensorFloat-32 on Ampere (and later) devices.
    Rule(
        name="float32_convolutions",
        needs=("gpu",),
        unknown=_no_gpu,
        when=lambda e: e.setup.precision.startswith("32") and not (_has_tf32(e) and e.conv_tf32),
        says=lambda e: (
            f"trainer.precision={e.setup.precision}, and cudnn.allow_tf32 was {'on' if e.conv_tf32 else 'off'} while "
            "the network trained (set_float32_matmul_precision does not affect convolutions)"
        ),
        remedy=lambda e: f"compute in 16 bits{', or in TF32' * _has_tf32(e)}",
        overrides=lambda e: ("trainer.precision=mixed", *(("callbacks.acceleration.tf32=true",) * _has_tf32(e))),
    ),
)
_SWAPPING = Rule(
    name="swapping",
    when=lambda e: e.occupancy.swapped_mb > _MUCH_MB_PER_SECOND * e.occupancy.seconds,
    says=lambda e: f"{e.occupancy.swapped_mb:.1f} MB were swapped in {e.occupancy.seconds:.1f} s",
    remedy="use fewer workers or fewer batches ahead, or end other programs that use memory",
    overrides=lambda e: ("data.prefetch_factor=1",),
)

FIRST_CHECKS = (*_OF_MACHINE, *STORAGE_CHECKS)
"""Need no experiment."""
ENVIRONMENT = (*FIRST_CHECKS, *_OF_GPU, _SWAPPING)
