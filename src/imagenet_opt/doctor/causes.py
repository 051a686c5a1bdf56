"""Causes in the GPU, in the training process and in the CPUs; and the order of all causes."""

import math
import shlex

from imagenet_opt.doctor.causes_storage import STORAGE_RULES
from imagenet_opt.doctor.environment import CPU_LIMITS, GPU_OTHERS
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, ORDINARY_WAITS, SLOWER, Evidence
from imagenet_opt.doctor.rule import (
    Rule,
    Texts,
    callbacks_like,
    data_place,
    list_processes,
    saves,
    smaller_pack,
)

PCIE_LINK = "nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"

# The GPU


def _is_below_rating(e: Evidence) -> bool:
    rated = e.setup.rated_images_per_second or 0.0
    return e.rate("gpu") < SLOWER * rated and e.busy_alone_share >= BUSY_ENOUGH


def _has_gaps(e: Evidence) -> bool:
    """Whether the device waits for launches. Slow launches would slow down the full run too; a device that is idle in
    one of the two experiments only has another reason."""
    busy = max(e.busy_alone_share, e.busy_share)
    return busy < BUSY_ENOUGH and e.waits_per_step < ORDINARY_WAITS and not e.has_neighbours


def _graphs(e: Evidence) -> Texts:
    """Overrides for CUDA graphs; none if the run has them, since Acceleration refuses both kinds at once."""
    switches = ("compile", "compile_mode", "cuda_graph")
    compiled, mode, has_own = (e.configured(f"callbacks.acceleration.{key}") for key in switches)
    if has_own or (compiled and mode in ("reduce-overhead", "max-autotune")):
        return ()
    return ("callbacks.acceleration.compile=true", "callbacks.acceleration.compile_mode=reduce-overhead")


def _copy_says(e: Evidence) -> str:
    if e.copy_rate == math.inf:
        return "nothing is copied to a GPU"
    waits = f", and training waits for it (data.copies={e.configured('data.copies')})" * (not e.is_overlapped)
    return f"the copy to the GPU reaches {e.copy_rate:.0f} img/s{waits}"


def _copy_overrides(e: Evidence) -> Texts:
    if not e.is_overlapped:
        return ("data.copies=ahead",)
    return ("data.resize_on=device",) if e.setup.resize_on == "worker" else ()


def _copy_gain(e: Evidence) -> float | None:
    rate = min(e.compute_rate, e.copy_rate, e.supply_rate)
    return None if e.is_overlapped else max(1.0, rate / e.measured_rate)


_SLOW_GPU = (
    Rule(
        name="shared_gpu",
        cause="Shared GPU: other processes compute on the same GPU",
        when=lambda e: e.shares_gpu and (_is_below_rating(e) or (not e.no_kernels and _has_gaps(e))),
        says=lambda e: GPU_OTHERS.says(e) if e.shares_gpu else "no other process computes on the GPU",
        remedy=GPU_OTHERS.remedy,
        commands=GPU_OTHERS.commands,
    ),
    Rule(
        name="slow_gpu",
        cause="Slow GPU: the GPU is slower than other GPUs of its kind",
        needs=("gpu",),
        unknown=lambda e: "" if e.setup.rated_images_per_second else e.setup.rated_evidence,
        when=_is_below_rating,
        says=lambda e: (
            f"the GPU alone trains {e.rate('gpu'):.0f} img/s; a healthy GPU of this kind trains "
            f"{e.setup.rated_images_per_second:.0f}"
        ),
        remedy="check for throttled clocks and heat",
        commands=lambda e: ("nvidia-smi -q -d PERFORMANCE,CLOCK",),
        gain=lambda e: e.gpu_gain(e.setup.rated_images_per_second or 0.0),
        unless=("shared_gpu",),
    ),
)
_SLOW_COPY = Rule(
    name="slow_copy",
    cause="Copy-bound: the copy to the GPU is the limit",
    when=lambda e: e.is_slow_to_copy and e.busy_share < BUSY_ENOUGH and not e.is_starved,
    says=_copy_says,
    remedy=lambda e: (
        "check the PCIe link; send uint8 crops, not float images"
        if e.is_overlapped
        else "copy each batch while the step before it computes"
    ),
    overrides=_copy_overrides,
    commands=lambda e: (f"{PCIE_LINK} --format=csv",) if e.is_overlapped else (),
    gain=_copy_gain,
)
_LAUNCH_BOUND = Rule(
    name="launch_bound",
    cause="Launch-bound: the host launches kernels more slowly than the GPU computes them",
    unknown=lambda e: e.no_kernels or "other processes compute on the GPU, so its gaps may be theirs" * e.shares_gpu,
    when=_has_gaps,
    says=lambda e: f"with its batch resident the GPU computes {e.busy_alone_share:.0%} of the time",
    remedy=lambda e: f"launch fewer kernels: {'compile, CUDA graphs, ' * bool(_graphs(e))}a larger batch",
    overrides=_graphs,
    commands=lambda e: (f"imagenet-opt tune {data_place(e).words}",),
    gain=lambda e: e.gpu_gain(e.rate("gpu") / e.busy_alone_share),
    unless=("few_cpus", "little_memory"),
)

# The training process


def _stall_says(e: Evidence, phase: str) -> str:
    seconds = e.phases.get(phase, 0.0), e.run_seconds, e.idle_seconds
    phase_ms, step_ms, idle_ms = (1000 * value for value in seconds)
    return (
        f"{phase} takes {phase_ms:.1f} ms of a step of {step_ms:.0f} ms, in which the GPU is idle for {idle_ms:.0f} ms"
    )


def _sync_gain(e: Evidence) -> float:
    """If the network itself waits, the GPU is idle in the run with a resident batch too."""
    return e.stages_gain if e.busy_alone_share >= BUSY_ENOUGH else e.gpu_gain(e.compute_rate)


def _save_remedy(e: Evidence) -> str:
    if saves(e):
        return "save checkpoints by time (callbacks.checkpoint.every_minutes), or to a faster disk"
    own = "callbacks.checkpoint"
    others = [f"{key} ({name})" for key, name in callbacks_like(e, "Checkpoint").items() if key != own]
    return f"save less often, or to a faster disk: {' and '.join(others) or own}"


def _slowest_callback(e: Evidence) -> str:
    """Its phase."""
    phases = [phase for phase in e.phases if phase.startswith("callback ")]
    return max(phases, key=lambda phase: e.phases[phase], default="callback")


def _without_callback(e: Evidence) -> Texts:
    name = _slowest_callback(e).removeprefix("callback ")
    keys = [key for key, class_name in callbacks_like(e, name).items() if class_name == name]
    without = (shlex.quote(f"~{key}") for key in keys)
    command = " ".join(["python train.py", data_place(e).words, *without])
    return (command if keys else f"grep -rn 'class {name}' --include=*.py .",)


_MAIN_PROCESS = (
    Rule(
        name="checkpoint_stall",
        cause="Main process: checkpoints delay the step",
        in_run=True,
        when=lambda e: e.holds_up("checkpoint"),
        says=lambda e: _stall_says(e, "checkpoint"),
        remedy=_save_remedy,
        overrides=saves,
        gain=lambda e: e.stages_gain,
    ),
    Rule(
        name="slow_logging",
        cause="Main process: logging delays the step",
        in_run=True,
        when=lambda e: e.holds_up("logging"),
        says=lambda e: _stall_says(e, "logging"),
        remedy="log less often, or to a faster disk",
        overrides=lambda e: (f"trainer.log_every_n_steps={10 * e.setup.log_every_n_steps}",),
        gain=lambda e: e.stages_gain,
    ),
    Rule(
        name="host_sync",
        cause="Host sync: the host waits for the GPU in each step",
        in_run=True,
        when=lambda e: e.waits_per_step >= ORDINARY_WAITS and e.busy_share < BUSY_ENOUGH and not e.is_starved,
        says=lambda e: ": ".join(
            filter(None, (f"{e.waits_per_step:.1f} waits for the GPU in an ordinary step", ", ".join(e.waits)))
        ),
        remedy="keep the value on the GPU, x.detach() instead of x.item(), and read it at logging steps only",
        gain=_sync_gain,
        unless=("checkpoint_stall", "slow_logging"),
    ),
    Rule(
        name="slow_callback",
        cause="Main process: a callback delays the step",
        in_run=True,
        when=lambda e: e.holds_up(_slowest_callback(e)),
        says=lambda e: _stall_says(e, _slowest_callback(e)),
        remedy=lambda e: f"call {_slowest_callback(e).removeprefix('callback ')} less often, or remove it",
        commands=_without_callback,
        gain=lambda e: e.stages_gain,
        unless=("host_sync",),  # a callback that waits for the GPU is slow too
    ),
)

# The CPUs


def _with_more_workers(e: Evidence) -> float:
    """Images per second that more workers decode, if they were measured; else 0."""
    return max((rate for count, rate in e.curves.get("workers", ()) if count > e.setup.num_workers), default=0.0)


def _workers_together(e: Evidence) -> float:
    """Rate at which one worker per usable CPU and the training process together use all CPUs."""
    most = _with_more_workers(e)
    return e.cpu_rate_with(most, e.setup.usable_cpus) if most else 0.0


def _needs_workers(e: Evidence) -> bool:
    helps = SLOWER * _with_more_workers(e) > e.rate("decode_all") and SLOWER * _workers_together(e) > e.measured_rate
    return e.is_short_of_cpu and e.setup.num_workers < e.setup.usable_cpus and helps


def _decoding(e: Evidence) -> str:
    workers, usable = e.setup.num_workers, e.setup.usable_cpus
    who = "1 loader worker decodes" if workers == 1 else f"{workers} loader workers decode"
    text = f"{who} {e.rate('decode_all'):.0f} img/s of {e.megapixels:.1f} MP; {usable} usable CPUs"
    return text + f" would decode {_with_more_workers(e):.0f}" * bool(_with_more_workers(e))


def _decode_overrides(e: Evidence) -> Texts:
    has_device = bool(e.simulated or e.setup.has_gpu)
    resize = ("data.resize_on=device",) if has_device and e.setup.resize_on == "worker" else ()
    more = _with_more_workers(e) > e.rate("decode_all")
    return (*resize, *((f"data.num_workers={e.setup.usable_cpus}",) if more else ()))


def _decode_remedy(e: Evidence) -> str:
    speedup = e.pack and f" ({e.pack.speedup:.1f} times as many img/s per worker, measured with some images)"
    ways = {"resize_on": "let the GPU resize (data.resize_on=device)", "num_workers": "use one worker per usable CPU"}
    advised = [way for key, way in ways.items() if any(key in override for override in _decode_overrides(e))]
    return ", ".join([f"pack smaller images{speedup or ''}", *advised, "or use more CPUs"])


def _decode_says(e: Evidence) -> str:
    by_cpu = f", and one process, limited by its CPU, reads {e.rate('storage'):.0f} img/s" * e.is_reading_on_cpu
    return _decoding(e) + by_cpu


def _fewer_workers_gain(e: Evidence) -> float | None:
    """With one worker less, the GPU reaches its full rate, and the loader is slower."""
    fewer = e.setup.num_workers - 1
    rate = min(e.rate("gpu"), e.rate("loader") * fewer / (fewer + 1))
    return e.gpu_gain(rate) if fewer > 0 else None


def _neighbour_gain(e: Evidence) -> float:
    usable = e.host.usable_cpus
    return min(usable / max(0.1, usable - e.occupancy.others_cpus), e.most_gain)


_CPU_RULES = (
    Rule(
        name="busy_neighbour",
        cause="CPU-bound: other processes take the CPUs",
        when=lambda e: e.has_neighbours and e.busy_share < BUSY_ENOUGH and not e.is_slow_reading,
        says=lambda e: (
            f"other processes take {e.occupancy.others_cpus:.1f} of {e.host.usable_cpus} usable CPUs: "
            f"{', '.join(e.occupancy.others) or 'no such process is visible'}"
        ),
        remedy="stop or move these processes, or request CPUs that no other job uses",
        commands=lambda e: (list_processes(e.occupancy.others),),
        gain=_neighbour_gain,
        unless=("little_memory", "small_prefetch", *(rule.name for rule in _MAIN_PROCESS)),
    ),
    Rule(
        name="few_workers",
        cause="Loader-bound: fewer loader workers than CPUs",
        when=_needs_workers,
        says=_decoding,
        remedy="use one worker per usable CPU",
        overrides=lambda e: (f"data.num_workers={e.setup.usable_cpus}",),
        gain=lambda e: max(1.0, min(_workers_together(e) / e.measured_rate, e.most_gain)),
        unless=("little_memory", "busy_neighbour"),
    ),
    Rule(
        name="few_cpus",
        cause="CPU-bound: the job may use only some of the CPUs",
        when=lambda e: e.is_short_of_cpu and e.host.usable_cpus < e.host.installed_cpus,
        says=CPU_LIMITS.says,
        remedy=CPU_LIMITS.remedy,
        commands=CPU_LIMITS.commands,
        gain=lambda e: e.cpus_gain,
        unless=("little_memory", "busy_neighbour", "few_workers"),
    ),
    Rule(
        name="slow_decode",
        cause="CPU-bound: decoding takes the CPUs",
        when=lambda e: e.is_starved and e.is_short_of_cpu and not e.is_ample,
        says=_decode_says,
        remedy=_decode_remedy,
        overrides=_decode_overrides,
        commands=lambda e: (smaller_pack(e),),
        gain=lambda e: e.pack_gain,
        unless=("little_memory", "busy_neighbour", "few_workers", "few_cpus"),
    ),
    _LAUNCH_BOUND,
    Rule(
        name="contention",
        cause="CPU-bound: the loader takes CPU time that the training process needs",
        when=lambda e: e.is_crowded,
        says=lambda e: (
            f"{e.device} trains {e.rate('gpu'):.0f} img/s alone, {e.rate('gpu_beside_loader'):.0f} img/s while the "
            "loader runs"
        ),
        remedy="leave one CPU for the training process: one worker less, smaller packed images, or more CPUs",
        overrides=lambda e: (f"data.num_workers={e.setup.num_workers - 1}",) if e.setup.num_workers > 1 else (),
        commands=lambda e: (smaller_pack(e),),
        gain=_fewer_workers_gain,
        unless=("little_memory", "busy_neighbour", "few_workers", "few_cpus", "slow_decode"),
    ),
)

CAUSES = (*_SLOW_GPU, *_MAIN_PROCESS, *STORAGE_RULES, _SLOW_COPY, *_CPU_RULES)
"""In order: the first rule that fires names the cause."""
