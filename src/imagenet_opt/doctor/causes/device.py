"""Causes in the GPU, and between host and GPU."""

import math

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.gpu import LINK
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.doctor.gains import gpu_gain
from imagenet_opt.doctor.remedies import changing, configured, data_place
from imagenet_opt.doctor.symptoms import ORDINARY_WAITS, SLOWER, has_neighbours, is_starved

_SWITCHES = ("compile", "compile_mode", "cuda_graph")
_RECORD = "imagenet-opt doctor --record-profile stores the rate of a healthy GPU"


def slow_gpu(evidence: Evidence) -> Finding:
    rated = evidence.facts.rated_images_per_second
    if not rated:
        return Finding("slow_gpu", None, "the rate of a healthy GPU of this kind is unknown", _RECORD)
    fired = evidence.gpu_rate < SLOWER * rated and evidence.busy_alone_share >= BUSY_ENOUGH
    return Finding(
        "slow_gpu",
        fired,
        f"alone it trains {evidence.gpu_rate:.0f} img/s; a healthy GPU of this kind trains {rated:.0f}",
        "check for throttled clocks, other processes on the GPU, and float32 instead of mixed precision",
        overrides=("trainer.precision=mixed",) if evidence.facts.precision in ("32", "32-true") else (),
        commands=("nvidia-smi -q -d PERFORMANCE,CLOCK",),
        gain=gpu_gain(evidence, rated) if fired else None,
    )


def launch_bound(evidence: Evidence) -> Finding:
    if evidence.facts.no_kernels_reason:
        return Finding("launch_bound", None, evidence.facts.no_kernels_reason)
    # Slow launches would slow down the full run too; an idle GPU in one of the two experiments only has another cause.
    is_idle = (
        max(evidence.busy_alone_share, evidence.busy_share) < BUSY_ENOUGH
        and (evidence.facts.waits_per_step or 0.0) < ORDINARY_WAITS
    )
    fired = is_idle and not has_neighbours(evidence)
    graphed = _has_graphs(evidence)
    compiled = ("callbacks.acceleration.compile=true", "callbacks.acceleration.compile_mode=reduce-overhead")
    return Finding(
        "launch_bound",
        fired,
        f"with its batch resident the GPU computes {evidence.busy_alone_share:.0%} of the time",
        "launch fewer kernels: " + ("a larger batch" if graphed else "compile, CUDA graphs, a larger batch"),
        overrides=() if graphed else changing(evidence, *compiled),
        commands=(f"imagenet-opt tune {data_place(evidence).words}",),
        gain=gpu_gain(evidence, evidence.gpu_rate / evidence.busy_alone_share) if fired else None,
    )


def _has_graphs(evidence: Evidence) -> bool:
    """Whether CUDA graphs are on already, on their own or through torch.compile; both at once are an error."""
    compiled, mode, own = (configured(evidence, f"callbacks.acceleration.{key}") for key in _SWITCHES)
    return bool(own) or (bool(compiled) and mode in ("reduce-overhead", "max-autotune"))


def slow_copy(evidence: Evidence) -> Finding:
    slow = evidence.rate_with_copy(evidence.compute_rate) < SLOWER * evidence.compute_rate
    fired = slow and evidence.busy_share < BUSY_ENOUGH and not is_starved(evidence)
    how = (
        ""
        if evidence.is_overlapped
        else f", and training waits for it (data.copies={configured(evidence, 'data.copies')})"
    )
    smaller = ("data.resize_on=device",) if evidence.facts.resize_on == "worker" else ()
    return Finding(
        "slow_copy",
        fired,
        "nothing is copied to a GPU"
        if evidence.copy_rate == math.inf
        else f"the copy to the GPU reaches {evidence.copy_rate:.0f} img/s{how}",
        "check the PCIe link; send uint8 crops, not float images"
        if evidence.is_overlapped
        else "copy ahead of the step",
        overrides=smaller if evidence.is_overlapped else ("data.copies=ahead",),
        commands=(f"nvidia-smi --query-gpu={LINK} --format=csv",) if evidence.is_overlapped else (),
        gain=_with_copies_ahead(evidence) if fired and not evidence.is_overlapped else None,
    )


def _with_copies_ahead(evidence: Evidence) -> float:
    return max(1.0, min(evidence.compute_rate, evidence.copy_rate, evidence.supply_rate) / evidence.measured_rate)
