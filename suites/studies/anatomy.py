"""Splits one training step into kinds of operations, and compares it with the device's peak.

python -m suites.studies.anatomy model.name=resnet18 data.image_size=64 data.batch_size=32

The kinds are those of Ivanov et al., Data Movement Is All You Need, 2020, arXiv:2007.00072, table 1. MFU is defined as
in Chowdhery et al., PaLM, arXiv:2204.02311, except that PaLM uses the peak of the data sheet.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from imagenet_opt.display.table import Cell, Column, Table
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.telemetry.torch_profile import PERMISSION, kernel_seconds
from imagenet_opt.probe.model_flops import TRAINING_FORWARDS, forward_flops
from suites.studies.command import arguments, show
from suites.studies.synthetic_step import SyntheticStep

NUM_STEPS = 5
"""Profiled steps."""
SIZES = {"cuda": (2048, 4096, 8192), "cpu": (512, 1024, 2048)}
"""Rows of square matrices. The fastest size differs from device to device."""
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


def _group(event: Any) -> str:
    outer = event
    while outer is not None and not outer.name.startswith("Optimizer.step"):
        outer = outer.cpu_parent
    return group_of(event.name) if outer is None else "optimizer"


@dataclass(frozen=True)
class Anatomy:
    """One training step, not compiled.

    step_seconds: mean of unprofiled steps. kernel_seconds: time of kernels in it; None without a GPU. flops: of the
    contractions of a step. peak, peak_size: FLOP/s of the fastest matrix product, and its size. group_seconds: by
    GROUPS.
    """

    num_images: int
    step_seconds: float
    kernel_seconds: float | None
    flops: float
    peak: float
    peak_size: int
    group_seconds: Mapping[str, float]


def measure(subject: SyntheticStep, *, seconds: float, num_steps: int) -> Anatomy:
    """Time steps, then profile `num_steps` of them. Raises ConfigError if the profiler sees no kernel of a GPU."""
    net, batch = subject.net(), subject.batch()
    optimizer = subject.optimizer(net)

    def step() -> None:
        subject.loss(net, *batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step_seconds = subject.seconds(step, seconds)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if subject.on_gpu else [])]
    with profile(activities=activities) as profiled:
        for _ in range(num_steps):
            step()
        subject.settle()
    kernels = kernel_seconds(profiled, num_steps=num_steps) if subject.on_gpu else None
    if kernels == 0:  # as in containers without permission
        raise ConfigError(f"the profiler saw no kernel; {PERMISSION}")
    flops = TRAINING_FORWARDS * forward_flops(net, subject.image_size) * float(subject.num_images)
    groups = seconds_of_groups(profiled, num_steps=num_steps, on_gpu=subject.on_gpu)
    return Anatomy(subject.num_images, step_seconds, kernels, flops, *matmul_peak(subject, seconds / 2), groups)


def matmul_peak(subject: SyntheticStep, seconds: float) -> tuple[float, int]:
    """FLOP/s and rows of the fastest product of square matrices, over about `seconds` in all. A product takes 2 size^3
    FLOPs. The matrices are random, since zeros are faster on a GPU with a power limit."""
    rates = []
    for size in SIZES[subject.device.type]:
        left, right = (torch.randn(size, size, device=subject.device).to(subject.products) for _ in range(2))
        out = torch.empty_like(left)
        call_seconds = subject.seconds(lambda: torch.mm(left, right, out=out), seconds / 3)  # noqa: B023
        rates.append((2 * size**3 / call_seconds, size))
    return max(rates)


def table_of(anatomy: Anatomy, title: str) -> Table:
    """Times of each kind of operation, and the FLOPs of contractions beside the peak."""
    seconds, peak = anatomy.group_seconds, anatomy.peak
    total = sum(seconds.values())
    columns = (
        *(Column("operations"), Column("ms/step", "{:,.2f}"), Column("time %", "{:.1f}")),
        *(Column("GFLOP/step", "{:,.1f}"), Column("TFLOP/s", "{:,.3g}"), Column("% of the peak", "{:.1f}")),
    )

    def row(name: str, duration: float, share: float | None, flops: float | None) -> tuple[Cell, ...]:
        rate = flops and flops / duration
        return name, 1000 * duration, share, flops and flops / 1e9, rate and rate / 1e12, rate and 100 * rate / peak

    rows = (
        *(
            row(name, each, 100 * each / total, anatomy.flops if name == GROUPS[0] else None)
            for name, each in seconds.items()
        ),
        row("whole step", anatomy.step_seconds, None, anatomy.flops),
    )
    notes = [
        f"The peak, {peak / 1e12:,.3g} TFLOP/s, is the fastest square matrix product measured here, of "
        f"{anatomy.peak_size} rows. The percentage of the whole step is the MFU (model FLOPs utilisation), at "
        f"{anatomy.num_images / anatomy.step_seconds:,.0f} images/s, not compiled.",
    ]
    if anatomy.kernel_seconds is not None:
        notes.append(gaps_sentence(anatomy.step_seconds, anatomy.kernel_seconds))
    finding = (
        "Contractions (convolutions, matrix products) have nearly all FLOPs and "
        f"{100 * seconds[GROUPS[0]] / total:.1f} % of the time; in BERT, 99.8 and 61 % (arXiv:2007.00072)."
    )
    return Table(f"Kinds of operations: {title}", columns, rows, tuple(notes), finding=finding)


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


def main() -> None:
    given = arguments(__doc__)
    subject = SyntheticStep(given.overrides)
    show(table_of(measure(subject, seconds=given.seconds, num_steps=NUM_STEPS), str(subject)))


if __name__ == "__main__":
    main()
