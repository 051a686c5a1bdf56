"""Causes between host and GPU, and in the GPU itself."""

import math

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.gpu import LINK
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.doctor.gains import gpu_gain
from imagenet_opt.doctor.remedies import changing, configured, data_place
from imagenet_opt.doctor.symptoms import ORDINARY_WAITS, SLOWER, has_neighbours, is_starved

_SWITCHES = ("compile", "compile_mode", "cuda_graph")
_RECORD = "imagenet-opt doctor --record-profile keeps what a GPU does when all is well"


def slow_gpu(seen: Evidence) -> Finding:
    rated = seen.facts.rated_images_per_second
    if not rated:
        return Finding("slow_gpu", None, "how fast a GPU of this kind should be is not known here", _RECORD)
    fired = seen.gpu < SLOWER * rated and seen.busy_alone >= BUSY_ENOUGH
    return Finding(
        "slow_gpu",
        fired,
        f"alone it trains {seen.gpu:.0f} of the {rated:.0f} img/s that its kind does",
        "look for throttled clocks, other processes on the GPU, float32 instead of mixed precision",
        overrides=("trainer.precision=mixed",) if seen.facts.precision in ("32", "32-true") else (),
        commands=("nvidia-smi -q -d PERFORMANCE,CLOCK",),
        gain=gpu_gain(seen, rated) if fired else None,
    )


def launch_bound(seen: Evidence) -> Finding:
    if seen.facts.no_kernels_reason:
        return Finding("launch_bound", None, seen.facts.no_kernels_reason)
    # What slows down the host itself, or for a moment only, is not its launches: the full run would show them too.
    is_idle = max(seen.busy_alone, seen.busy) < BUSY_ENOUGH and (seen.facts.waits_per_step or 0.0) < ORDINARY_WAITS
    fired = is_idle and not has_neighbours(seen)
    graphed = _has_graphs(seen)
    compiled = ("callbacks.acceleration.compile=true", "callbacks.acceleration.compile_mode=reduce-overhead")
    return Finding(
        "launch_bound",
        fired,
        f"with its batch resident the GPU computes {seen.busy_alone:.0%} of the time",
        "launch less often: " + ("a larger batch" if graphed else "compile, CUDA graphs, a larger batch"),
        overrides=() if graphed else changing(seen, *compiled),
        commands=(f"imagenet-opt tune {data_place(seen).words}",),
        gain=gpu_gain(seen, seen.gpu / seen.busy_alone) if fired else None,
    )


def _has_graphs(seen: Evidence) -> bool:
    """Whether CUDA graphs are on already, by themselves or by torch.compile; both at once are refused."""
    compiled, mode, own = (configured(seen, f"callbacks.acceleration.{key}") for key in _SWITCHES)
    return bool(own) or (bool(compiled) and mode in ("reduce-overhead", "max-autotune"))


def slow_copy(seen: Evidence) -> Finding:
    slow = seen.with_copy(seen.computes) < SLOWER * seen.computes
    fired = slow and seen.busy < BUSY_ENOUGH and not is_starved(seen)
    how = "" if seen.is_overlapped else f", and training waits for it (data.copies={configured(seen, 'data.copies')})"
    smaller = ("data.resize_on=device",) if seen.facts.resize_on == "worker" else ()
    return Finding(
        "slow_copy",
        fired,
        "there is no copy" if seen.copy == math.inf else f"the copy to the GPU manages {seen.copy:.0f} img/s{how}",
        "look at the PCIe link; send uint8 crops, not float images" if seen.is_overlapped else "copy ahead of the step",
        overrides=smaller if seen.is_overlapped else ("data.copies=ahead",),
        commands=(f"nvidia-smi --query-gpu={LINK} --format=csv",) if seen.is_overlapped else (),
        gain=_with_copies_ahead(seen) if fired and not seen.is_overlapped else None,
    )


def _with_copies_ahead(seen: Evidence) -> float:
    return max(1.0, min(seen.computes, seen.copy, seen.supply) / seen.measured)
