"""Causes in the GPU, in the copies to it, and in the training process."""

import math
from collections.abc import Callable
from typing import Any

from imagenet_opt.config.speed import UNRATED
from imagenet_opt.doctor.commands import data_words
from imagenet_opt.doctor.environment import GPU_OTHERS
from imagenet_opt.doctor.evidence import Evidence, Reach
from imagenet_opt.doctor.rule import Rule
from imagenet_opt.doctor.thresholds import ORDINARY_WAITS, SLOWER
from imagenet_opt.measure.telemetry.idle_causes import HEALTHY_BUSY

_GRAPHS = ("callbacks.acceleration.compile=true", "callbacks.acceleration.compile_mode=reduce-overhead")


def kernel_rate(e: Evidence) -> float:
    """Images per second that the device computes without any gap."""
    return e.batch_size / e.fact("gpu", "device_seconds")


def _busy_alone_share(e: Evidence) -> float:
    """Share of the time in which the device computes if its batches are already on it."""
    return min(1.0, e.fact("gpu", "device_seconds") * e.rate("gpu") / e.batch_size)


def _is_shared(e: Evidence) -> bool:
    return bool(e.gpu and e.gpu.others)


def _is_below_rating(e: Evidence) -> bool:
    rated = e.setup.rated_images_per_second or 0.0
    return e.rate("gpu") < SLOWER * rated and _busy_alone_share(e) >= HEALTHY_BUSY


def _has_gaps(e: Evidence) -> bool:
    """Whether the device waits for launches. Slow launches would slow down the full run too; a device that is idle in
    one of the two experiments only has another reason."""
    busy = max(_busy_alone_share(e), e.busy_share)
    return busy < HEALTHY_BUSY and e.waits_per_step < ORDINARY_WAITS


GPU_RULES = (
    Rule(
        name="shared_gpu",
        cause="Shared GPU: other processes compute on the same GPU",
        frees="gpu",
        when=lambda e: _is_shared(e) and (_is_below_rating(e) or (not e.no_kernels and _has_gaps(e))),
        says=GPU_OTHERS.says,
        remedy=GPU_OTHERS.remedy,
        commands=GPU_OTHERS.commands,
        reaches=lambda e: e.reach(device=e.setup.rated_images_per_second or math.inf),
        predicts=lambda e: bool(e.setup.rated_images_per_second),
    ),
    Rule(
        name="slow_gpu",
        cause="Slow GPU: the GPU is slower than other GPUs of its kind",
        frees="gpu",
        unknown=lambda e: "" if e.setup.rated_images_per_second else UNRATED,
        when=_is_below_rating,
        says=lambda e: (
            f"the GPU alone trains {e.rate('gpu'):.0f} img/s; a healthy GPU of this kind trains "
            f"{e.setup.rated_images_per_second:.0f}"
        ),
        remedy="check for throttled clocks and heat",
        commands=lambda e: ("nvidia-smi -q -d PERFORMANCE,CLOCK",),
        reaches=lambda e: e.reach(device=e.setup.rated_images_per_second or 0.0),
    ),
)


def _has_graphs(e: Evidence) -> bool:
    """Whether the run has CUDA graphs already, of either kind."""
    graph, mode, compiled = (
        e.configured(f"callbacks.acceleration.{key}") for key in ("cuda_graph", "compile_mode", "compile")
    )
    return bool(graph) or (bool(compiled) and mode in ("reduce-overhead", "max-autotune"))


SLOW_COPY = Rule(
    name="slow_copy",
    cause="Copy-bound: the copy to the GPU is the limit",
    frees="copy",
    unknown=lambda e: "nothing is copied to a GPU" if e.copy_rate == math.inf else "",
    when=lambda e: e.is_idle,
    says=lambda e: f"the copy to the GPU reaches {e.copy_rate:.0f} img/s",
    remedy="copy batches while the step before computes, send uint8 crops, check the PCIe link",
    overrides=lambda e: ("data.copies=ahead", *(["data.resize_on=device"] if e.setup.resize_on == "worker" else [])),
    commands=lambda e: (
        "nvidia-smi --format=csv --query-gpu=pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current",
    ),
    reaches=lambda e: e.reach(copy=math.inf),
)
LAUNCH_BOUND = Rule(
    name="launch_bound",
    cause="Launch-bound: the host launches kernels more slowly than the GPU computes them",
    frees="launches",
    unknown=lambda e: (
        e.no_kernels or ("other processes compute on the GPU, so its gaps may be theirs" if _is_shared(e) else "")
    ),
    when=_has_gaps,
    says=lambda e: f"with its batch resident the GPU computes {_busy_alone_share(e):.0%} of the time",
    remedy="launch fewer kernels: compile, CUDA graphs, a larger batch",
    overrides=lambda e: () if _has_graphs(e) else _GRAPHS,
    commands=lambda e: (f"imagenet-opt tune {data_words(e)}",),
    reaches=lambda e: e.reach(device=kernel_rate(e), host=math.inf),
)

# The training process


def _number(e: Evidence, key: str) -> float:
    """A configured number; 0 if it is missing or no plain number."""
    value = e.configured(key)
    return value if isinstance(value, int | float) else 0.0


def _stall(name: str, words: str, phase: Callable[[Evidence], str], remedy: str, **more: Any) -> Rule:
    """A phase of the main process in which the GPU waits. more: overrides or commands of the rule."""

    def says(e: Evidence) -> str:
        phase_ms, step_ms, idle_ms = (1e3 * s for s in (e.phases.get(phase(e), 0), e.run_seconds, e.idle_seconds))
        idle = f"in which the GPU is idle for {idle_ms:.0f} ms"
        return f"{phase(e)} takes {phase_ms:.1f} ms of a step of {step_ms:.0f} ms, {idle}"

    def reaches(e: Evidence) -> Reach:
        left = e.host_seconds - e.phases.get(phase(e), 0.0)
        return e.reach(host=e.batch_size / left if left > 0 else math.inf)

    return Rule(
        name=name,
        cause=f"Main process: {words} the step",
        frees="main process",
        when=lambda e: e.is_idle,
        says=says,
        remedy=remedy,
        reaches=reaches,
        **more,
    )


def _slowest_callback(e: Evidence) -> str:
    """Its phase."""
    phases = [phase for phase in e.phases if phase.startswith("callback ")]
    return max(phases, key=lambda phase: e.phases[phase], default="callback")


def _save_rarely(e: Evidence) -> tuple[str, ...]:
    is_often = _number(e, "callbacks.checkpoint.every_minutes") < 15
    return ("callbacks.checkpoint.every_n_steps=null", *(["callbacks.checkpoint.every_minutes=15"] if is_often else []))


PROCESS_RULES = (
    _stall(
        "checkpoint_stall",
        "checkpoints delay",
        lambda e: "checkpoint",
        "save less often (callbacks.checkpoint.every_minutes, or your own callback), or to a faster disk",
        overrides=_save_rarely,
    ),
    _stall(
        "slow_logging",
        "logging delays",
        lambda e: "logging",
        "log less often, or to a faster disk",
        overrides=lambda e: (f"trainer.log_every_n_steps={10 * int(_number(e, 'trainer.log_every_n_steps') or 20)}",),
    ),
    Rule(
        name="host_sync",
        cause="Host sync: the host waits for the GPU in each step",
        frees="main process",
        when=lambda e: e.waits_per_step >= ORDINARY_WAITS and e.is_idle,
        says=lambda e: f"{e.waits_per_step:.1f} waits for the GPU in an ordinary step: {', '.join(e.waits)}",
        remedy="keep the value on the GPU, x.detach() instead of x.item(), and read it at logging steps only",
        # if the network itself waits, the GPU is idle with a resident batch too, and no experiment tells the gain
        reaches=lambda e: e.expected if _busy_alone_share(e) >= HEALTHY_BUSY else e.reach(device=kernel_rate(e)),
        predicts=lambda e: _busy_alone_share(e) >= HEALTHY_BUSY,
        rate=lambda e: e.measured_rate,
    ),
    _stall(
        "slow_callback",
        "a callback delays",
        _slowest_callback,
        "call it less often, or remove it (~callbacks.NAME)",
    ),
)
