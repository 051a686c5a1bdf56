"""Operations of a training step in a profile: their kinds of work and their times.

The three kinds of work, contractions, normalisations with reductions, and element-wise operations, are those of Ivanov
et al., Data Movement Is All You Need, 2020, arXiv:2007.00072.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

PERMISSION = (
    "CUPTI needs permission: start the container with --cap-add=SYS_ADMIN, or load NVIDIA's driver with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)
"""Remedy when the profiler sees no kernels, as in containers without the right to profile."""


def gaps_sentence(step_seconds: float, kernel_seconds: float) -> str:
    """What closing the gaps between kernels could gain, for a step on the GPU without waits for data.

    step_seconds: from one step to the next. kernel_seconds: time in which at least one kernel ran, above 0, from a
    profiler, in the same steps.
    """
    gap_seconds = max(0.0, step_seconds - kernel_seconds)
    return (
        f"No kernel runs in {100 * gap_seconds / step_seconds:.1f} % of a step ({1000 * gap_seconds:.1f} of "
        f"{1000 * step_seconds:.1f} ms): closing the gaps, with callbacks.acceleration.cuda_graph=true or "
        f"compile=true, gives at most {max(1.0, step_seconds / kernel_seconds):.2f} times the speed."
    )


GROUPS = ("contraction", "normalisation", "element-wise", "copies", "optimizer", "rest")
"""normalisation: also reductions and pooling. copies: also fills. rest: launches, allocations, unknown operations."""


def _words(*words: str) -> re.Pattern[str]:
    """A pattern for any of the words as a whole part of a name, between underscores."""
    return re.compile(rf"(^|_)({'|'.join(words)})(_|$)")


_PATTERNS = {
    "optimizer": re.compile(r"^_foreach_|^_fused_(sgd|ada|lamb)|^_amp_"),
    "contraction": _words(
        r"\w*conv(olution)?\d*d?", r"(add|b|add?b|baddb|int|scaled)?mm", "matmul", "linear", r"\w*attention", "mv",
        "dot",
    ),
    "normalisation": _words(
        r"\w*norm", r"\w*softmax", r"\w*pool\d?d?", "sum", "mean", "var", "std", r"(?<!clamp_)a?(max|min)",
        "arg(max|min)", "topk", "logsumexp", r"loss\d?d?", "all", "any",
    ),
    "element-wise": _words(
        r"\w*relu\d?", r"\w*elu", r"clamp\w*", "threshold", "hardtanh", "hardswish", "hardsigmoid", "silu", "mish",
        "sigmoid", "tanh", "erf", "add", "r?sub", "mul", "div", "neg", "exp", "log", "pow", "r?sqrt", "abs", "sign",
        "reciprocal", "lerp", "addcmul", "addcdiv", "maximum", "minimum", "dropout", "bernoulli", "where", "masked",
        "eq", "ne", "lt", "le", "gt", "ge", r"logical\w*", r"bitwise\w*",
    ),
    "copies": _words("copy", "clone", "contiguous", "cat", "stack", "fill", "zeros?", "ones", "full"),
}  # fmt: skip


def group_of(name: str) -> str:
    """The group of an operation by its name in a profile ("aten::conv2d") or torch.ops ("aten.convolution.default")."""
    if name.startswith("Optimizer."):
        return "optimizer"
    space, _, operation = name.replace("::", ".").partition(".")
    if space != "aten":
        return "rest"
    operation = operation.partition(".")[0]
    return next((group for group, pattern in _PATTERNS.items() if pattern.search(operation)), "rest")


def seconds_of_groups(profile: Any, *, num_steps: int, on_gpu: bool) -> dict[str, float]:
    """Seconds of each group per step, in a torch.profiler.profile over `num_steps` steps: of the kernels that
    operations launch on a GPU, else of the CPU in the operations themselves."""
    seconds = dict.fromkeys(GROUPS, 0.0)
    for event in profile.events():
        if event.device_type.name == "CPU" and not event.name.startswith("ProfilerStep"):
            own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            seconds[_group(event)] += own / 1e6 / num_steps
    return seconds


_HOST_COPIES = ("Memcpy HtoD", "Memcpy DtoH")
"""Beginnings of names that Kineto gives to copies. Source: `memcpyName` in pytorch/kineto, CuptiActivity.cpp."""


def kernel_seconds(profile: Any, *, num_steps: int) -> float:
    """Seconds per step in which the GPU ran at least one kernel; 0 without kernels. Copies between host and GPU do not
    count: they leave the GPU's processors idle. Copies within the GPU and fills do."""
    events = [event for event in profile.events() if event.device_type.name == "CUDA"]
    kernels = [
        event.time_range
        for event in events
        if not event.is_user_annotation and not event.name.startswith(_HOST_COPIES)  # an annotation spans many kernels
    ]
    return covered([(span.start, span.end) for span in kernels]) / 1e6 / num_steps


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of the spans (begin, end)."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _group(event: Any) -> str:
    outer = event
    while outer is not None and not outer.name.startswith("Optimizer.step"):
        outer = outer.cpu_parent
    return group_of(event.name) if outer is None else "optimizer"
