"""Causes in the training process and in the CPUs; and the order of all causes."""

from collections.abc import Callable
from typing import Any

from imagenet_opt.doctor.causes_gpu import LAUNCH_BOUND, SLOW_COPY, SLOW_GPU
from imagenet_opt.doctor.causes_storage import STORAGE_RULES
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, ORDINARY_WAITS, Evidence
from imagenet_opt.doctor.measurements import SLOWER
from imagenet_opt.doctor.rule import Rule, Texts, smaller_pack

# The training process


def _stall(name: str, words: str, phase: Callable[[Evidence], str], remedy: str, **more: Any) -> Rule:
    """A phase of the main process in which the GPU waits. more: overrides or commands of the rule."""

    def says(e: Evidence) -> str:
        phase_ms, step_ms, idle_ms = (1e3 * s for s in (e.phases.get(phase(e), 0), e.run_seconds, e.idle_seconds))
        idle = f"in which the GPU is idle for {idle_ms:.0f} ms"
        return f"{phase(e)} takes {phase_ms:.1f} ms of a step of {step_ms:.0f} ms, {idle}"

    return Rule(
        name=name,
        cause=f"Main process: {words} the step",
        when=lambda e: e.holds_up(phase(e)),
        says=says,
        remedy=remedy,
        gain=lambda e: e.stages_gain,
        **more,
    )


def _saves(e: Evidence) -> Texts:
    """Overrides that write checkpoints every 15 minutes, if the run writes them more often."""
    minutes = e.configured("callbacks.checkpoint.every_minutes")
    seldom = isinstance(minutes, int | float) and minutes >= 15
    return ("callbacks.checkpoint.every_n_steps=null", *(() if seldom else ("callbacks.checkpoint.every_minutes=15",)))


def _sync_gain(e: Evidence) -> float:
    """If the network itself waits, the GPU is idle in the run with a resident batch too."""
    return e.stages_gain if e.busy_alone_share >= BUSY_ENOUGH else e.gpu_gain(e.compute_rate)


def _slowest_callback(e: Evidence) -> str:
    """Its phase."""
    phases = [phase for phase in e.phases if phase.startswith("callback ")]
    return max(phases, key=lambda phase: e.phases[phase], default="callback")


_MAIN_PROCESS = (
    _stall(
        "checkpoint_stall",
        "checkpoints delay",
        lambda e: "checkpoint",
        "save less often (callbacks.checkpoint.every_minutes, or your own callback), or to a faster disk",
        overrides=_saves,
    ),
    _stall(
        "slow_logging",
        "logging delays",
        lambda e: "logging",
        "log less often, or to a faster disk",
        overrides=lambda e: (f"trainer.log_every_n_steps={10 * e.setup.log_every_n_steps}",),
    ),
    Rule(
        name="host_sync",
        cause="Host sync: the host waits for the GPU in each step",
        when=lambda e: e.waits_per_step >= ORDINARY_WAITS and e.busy_share < BUSY_ENOUGH and not e.is_starved,
        says=lambda e: ": ".join(
            filter(None, (f"{e.waits_per_step:.1f} waits for the GPU in an ordinary step", ", ".join(e.waits)))
        ),
        remedy="keep the value on the GPU, x.detach() instead of x.item(), and read it at logging steps only",
        gain=_sync_gain,
    ),
    _stall(
        "slow_callback",
        "a callback delays",
        _slowest_callback,
        "call it less often, or remove it (~callbacks.NAME)",
    ),
)

# The CPUs


def _neighbour_gain(e: Evidence) -> float:
    usable = e.host.usable_cpus
    return min(usable / max(0.1, usable - e.others_cpus), e.most_gain)


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


def _decode_says(e: Evidence) -> str:
    text = f"{e.setup.num_workers} loader workers decode {e.rate('decode_all'):.0f} img/s of {e.megapixels:.1f} MP"
    text += f"; {e.setup.usable_cpus} usable CPUs"
    text += f" would decode {_with_more_workers(e):.0f}" * bool(_with_more_workers(e))
    return text + f", and one process, limited by its CPU, reads {e.rate('storage'):.0f} img/s" * e.is_reading_on_cpu


def _decode_overrides(e: Evidence) -> Texts:
    has_device = bool(e.simulated or e.setup.has_gpu)
    resize = ("data.resize_on=device",) if has_device and e.setup.resize_on == "worker" else ()
    more = _with_more_workers(e) > e.rate("decode_all")
    return (*resize, *((f"data.num_workers={e.setup.usable_cpus}",) if more else ()))


def _decode_remedy(e: Evidence) -> str:
    speedup = e.pack and f" ({e.pack.speedup:.1f} times as many img/s per worker, measured with some images)"
    advised = [f"set {override}" for override in _decode_overrides(e)]
    return ", ".join([f"pack smaller images{speedup or ''}", *advised, "or use more CPUs"])


def _pack_gain(e: Evidence) -> float | None:
    """Gain if packed images are decoded as fast as the doctor forecasts; None without a forecast."""
    if e.pack is None:
        return None
    speedup = e.pack.speedup
    supply = min(e.rate("loader") * speedup, e.cpu_rate_with(e.rate("decode_all") * speedup))
    return max(1.0, min(supply, e.fed_rate) / e.measured_rate)


def _fewer_workers_gain(e: Evidence) -> float | None:
    """With one worker less, the GPU reaches its full rate, and the loader is slower."""
    fewer = e.setup.num_workers - 1
    rate = min(e.rate("gpu"), e.rate("loader") * fewer / (fewer + 1))
    return e.gpu_gain(rate) if fewer > 0 else None


_MORE_CPUS = {
    "affinity": (
        "start the run without taskset or numactl, or with more CPUs",
        "taskset --cpu-list 0-{last} python train.py ...",
    ),
    "cgroup quota": ("give the container more CPUs", "docker run --cpus={num} ..."),
    "SLURM_CPUS_PER_TASK": (
        "request more CPUs from SLURM; without --cpus-per-task a task gets one CPU",
        "sbatch --cpus-per-task={num} ...",
    ),
}
"""Limit, as `machine.cpu_limits` names it -> how to raise it, and the command. Sources: sbatch(1), taskset(1), which
numbers CPUs from 0, docker run."""


def _cpu_limits(e: Evidence) -> list[tuple[str, str]]:
    """Entries of _MORE_CPUS for the limits that allow the fewest CPUs. SLURM may bind a job by affinity."""
    binding = [name for name, cpus in e.host.cpu_limits.items() if cpus == e.host.usable_cpus]
    in_slurm = {"affinity": "SLURM_CPUS_PER_TASK"} if e.host.in_slurm else {}
    return [_MORE_CPUS[name] for name in dict.fromkeys(in_slurm.get(name, name) for name in binding)]


def _cpu_commands(e: Evidence) -> Texts:
    num = e.host.installed_cpus
    return tuple(command.format(num=num, last=num - 1) for _, command in _cpu_limits(e))


_CPU_RULES = (
    Rule(
        name="busy_neighbour",
        cause="CPU-bound: other processes take the CPUs",
        when=lambda e: e.has_neighbours and e.busy_share < BUSY_ENOUGH and not e.is_slow_reading,
        says=lambda e: f"other processes take {e.others_cpus:.1f} of {e.host.usable_cpus} usable CPUs",
        remedy="stop or move these processes, or request CPUs that no other job uses",
        commands=lambda e: ("top -b -n 1 -o %CPU | head -n 17",),
        gain=_neighbour_gain,
    ),
    Rule(
        name="few_workers",
        cause="Loader-bound: fewer loader workers than CPUs",
        when=_needs_workers,
        says=_decode_says,
        remedy="use one worker per usable CPU",
        overrides=lambda e: (f"data.num_workers={e.setup.usable_cpus}",),
        gain=lambda e: max(1.0, min(_workers_together(e) / e.measured_rate, e.most_gain)),
    ),
    Rule(
        name="few_cpus",
        cause="CPU-bound: the job may use only some of the CPUs",
        when=lambda e: e.is_short_of_cpu and e.host.usable_cpus < e.host.installed_cpus,
        says=lambda e: (
            f"this job may use {e.host.usable_cpus} of {e.host.installed_cpus} CPUs: "
            f"{', '.join(f'{name} allows {cpus}' for name, cpus in e.host.cpu_limits.items())}"
        ),
        remedy=lambda e: "; ".join(remedy for remedy, _ in _cpu_limits(e)),
        commands=_cpu_commands,
        gain=lambda e: min(e.host.installed_cpus / e.host.usable_cpus, e.most_gain),
    ),
    Rule(
        name="slow_decode",
        cause="CPU-bound: decoding takes the CPUs",
        when=lambda e: e.is_starved and e.is_short_of_cpu and not e.is_ample,
        says=_decode_says,
        remedy=_decode_remedy,
        overrides=_decode_overrides,
        commands=lambda e: (smaller_pack(e),),
        gain=_pack_gain,
    ),
    LAUNCH_BOUND,
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
    ),
)

CAUSES = (*SLOW_GPU, *_MAIN_PROCESS, *STORAGE_RULES, SLOW_COPY, *_CPU_RULES)
"""In order: the first rule that fires names the cause."""
