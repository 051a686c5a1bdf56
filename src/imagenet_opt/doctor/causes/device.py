"""Causes in the GPU, in its launches, and in the copy to it."""

import math

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.gpu import LINK
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, SLOWER, Evidence
from imagenet_opt.doctor.gains import gpu_gain
from imagenet_opt.doctor.remedies import changing, data_place
from imagenet_opt.doctor.symptoms import ORDINARY_WAITS, has_neighbours, is_slow_to_copy, is_starved

_SWITCHES = ("compile", "compile_mode", "cuda_graph")
_RECORD = "imagenet-opt doctor --record-profile stores the rate of a healthy GPU"


def slow_gpu(evidence: Evidence) -> Finding:
    rated = evidence.facts.rated_images_per_second
    if not rated:
        return Finding("slow_gpu", None, "the rate of a healthy GPU of this kind is unknown", _RECORD)
    fired = evidence.rate("gpu") < SLOWER * rated and evidence.busy_alone_share >= BUSY_ENOUGH
    return Finding(
        "slow_gpu",
        fired,
        f"the GPU alone trains {evidence.rate('gpu'):.0f} img/s; a healthy GPU of this kind trains {rated:.0f}",
        "check for throttled clocks, other processes on the GPU, and float32 instead of mixed precision",
        overrides=("trainer.precision=mixed",) if evidence.facts.precision in ("32", "32-true") else (),
        commands=("nvidia-smi -q -d PERFORMANCE,CLOCK",),
        gain=gpu_gain(evidence, rated) if fired else None,
    )


def launch_bound(evidence: Evidence) -> Finding:
    if evidence.facts.no_kernels_reason:
        return Finding("launch_bound", None, evidence.facts.no_kernels_reason)
    # Slow launches would slow down the full run too; an idle GPU in one of the two experiments only has another cause.
    busy, waits = max(evidence.busy_alone_share, evidence.busy_share), evidence.facts.waits_per_step or 0.0
    fired = busy < BUSY_ENOUGH and waits < ORDINARY_WAITS and not has_neighbours(evidence)
    compiled, mode, has_own_graph = (evidence.configured(f"callbacks.acceleration.{key}") for key in _SWITCHES)
    # Acceleration refuses both kinds of CUDA graphs at once.
    has_graphs = has_own_graph or (compiled and mode in ("reduce-overhead", "max-autotune"))
    graphs = ("callbacks.acceleration.compile=true", "callbacks.acceleration.compile_mode=reduce-overhead")
    return Finding(
        "launch_bound",
        fired,
        f"with its batch resident the GPU computes {evidence.busy_alone_share:.0%} of the time",
        "launch fewer kernels: " + ("a larger batch" if has_graphs else "compile, CUDA graphs, a larger batch"),
        overrides=() if has_graphs else changing(evidence, *graphs),
        commands=(f"imagenet-opt tune {data_place(evidence).words}",),
        gain=gpu_gain(evidence, evidence.rate("gpu") / evidence.busy_alone_share) if fired else None,
    )


def slow_copy(evidence: Evidence) -> Finding:
    fired = is_slow_to_copy(evidence) and evidence.busy_share < BUSY_ENOUGH and not is_starved(evidence)
    text = f"the copy to the GPU reaches {evidence.copy_rate:.0f} img/s"
    if evidence.copy_rate == math.inf:
        text = "nothing is copied to a GPU"
    if evidence.is_overlapped:
        overrides = ("data.resize_on=device",) if evidence.facts.resize_on == "worker" else ()
        remedy = "check the PCIe link; send uint8 crops, not float images"
        commands = (f"nvidia-smi --query-gpu={LINK} --format=csv",)
        return Finding("slow_copy", fired, text, remedy, overrides, commands)
    if evidence.copy_rate != math.inf:
        text += f", and training waits for it (data.copies={evidence.configured('data.copies')})"
    rate = min(evidence.compute_rate, evidence.copy_rate, evidence.supply_rate)
    gain = max(1.0, rate / evidence.measured_rate) if fired else None
    remedy = "copy each batch while the step before it computes"
    return Finding("slow_copy", fired, text, remedy, ("data.copies=ahead",), gain=gain)
