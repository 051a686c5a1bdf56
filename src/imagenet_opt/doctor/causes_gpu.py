"""Causes in the GPU, in the copy to the GPU, and in the launches of its kernels."""

import math

from imagenet_opt.doctor.environment import GPU_OTHERS
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, ORDINARY_WAITS, Evidence
from imagenet_opt.doctor.measurements import SLOWER
from imagenet_opt.doctor.rule import Rule, Texts, data_words

_PCIE_LINK = "nvidia-smi --format=csv --query-gpu=pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current"


def _is_shared(e: Evidence) -> bool:
    return bool(e.gpu and e.gpu.others)


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


SLOW_GPU = (
    Rule(
        name="shared_gpu",
        cause="Shared GPU: other processes compute on the same GPU",
        when=lambda e: _is_shared(e) and (_is_below_rating(e) or (not e.no_kernels and _has_gaps(e))),
        says=GPU_OTHERS.says,
        remedy=GPU_OTHERS.remedy,
        commands=GPU_OTHERS.commands,
    ),
    Rule(
        name="slow_gpu",
        cause="Slow GPU: the GPU is slower than other GPUs of its kind",
        unknown=lambda e: "" if e.setup.rated_images_per_second else e.setup.rated_evidence,
        when=_is_below_rating,
        says=lambda e: (
            f"the GPU alone trains {e.rate('gpu'):.0f} img/s; a healthy GPU of this kind trains "
            f"{e.setup.rated_images_per_second:.0f}"
        ),
        remedy="check for throttled clocks and heat",
        commands=lambda e: ("nvidia-smi -q -d PERFORMANCE,CLOCK",),
        gain=lambda e: e.gpu_gain(e.setup.rated_images_per_second or 0.0),
    ),
)
SLOW_COPY = Rule(
    name="slow_copy",
    cause="Copy-bound: the copy to the GPU is the limit",
    unknown=lambda e: "nothing is copied to a GPU" * (e.copy_rate == math.inf),
    when=lambda e: (
        e.rate_with_copy(e.compute_rate) < SLOWER * e.compute_rate and e.busy_share < BUSY_ENOUGH and not e.is_starved
    ),
    says=lambda e: f"the copy to the GPU reaches {e.copy_rate:.0f} img/s",
    remedy=lambda e: (
        "copy batches while the step before computes (data.copies=ahead), " * (not e.is_overlapped)
        + "send uint8 crops, check the PCIe link"
    ),
    overrides=lambda e: (
        *(("data.copies=ahead",) * (not e.is_overlapped)),
        *(("data.resize_on=device",) * (e.setup.resize_on == "worker")),
    ),
    commands=lambda e: (_PCIE_LINK,),
)
LAUNCH_BOUND = Rule(
    name="launch_bound",
    cause="Launch-bound: the host launches kernels more slowly than the GPU computes them",
    unknown=lambda e: e.no_kernels or "other processes compute on the GPU, so its gaps may be theirs" * _is_shared(e),
    when=_has_gaps,
    says=lambda e: f"with its batch resident the GPU computes {e.busy_alone_share:.0%} of the time",
    remedy=lambda e: f"launch fewer kernels: {'compile, CUDA graphs, ' * bool(_graphs(e))}a larger batch",
    overrides=_graphs,
    commands=lambda e: (f"imagenet-opt tune {data_words(e)}",),
    gain=lambda e: e.gpu_gain(e.rate("gpu") / e.busy_alone_share),
)
