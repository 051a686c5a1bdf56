"""Study `anatomy`: splits one training step into kinds of operations, and compares it with the device's peak."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch.profiler import ProfilerActivity, profile

from imagenet_opt.display.progress import say
from imagenet_opt.display.table import Cell, Column, Table
from imagenet_opt.errors import ConfigError, first_line
from imagenet_opt.measure.telemetry.torch_profile import (
    GROUPS,
    PERMISSION,
    gaps_sentence,
    kernel_seconds,
    seconds_of_groups,
)
from imagenet_opt.probe.device_peak import MatmulPeak, matmul_peak
from imagenet_opt.probe.model_flops import TRAINING_FORWARDS, forward_flops
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep
from imagenet_opt.study.plan import Request

CONTRACTION = GROUPS[0]


@dataclass(frozen=True)
class Anatomy:
    """One training step, not compiled.

    step_seconds: mean of unprofiled steps. kernel_seconds: time of kernels in it; None without a GPU. flops: of the
    contractions of a step. group_seconds: by GROUPS.
    """

    num_images: int
    step_seconds: float
    kernel_seconds: float | None
    flops: float
    peak: MatmulPeak
    group_seconds: Mapping[str, float]


def run(request: Request, num_steps: Annotated[int, Field(ge=1, le=1000)]) -> Table:
    """num_steps: number of profiled steps. Raises ImagenetOptError."""
    subject = SyntheticStep(request.overrides)
    say("measuring: one training step, taken apart")
    try:
        anatomy = measure(subject, seconds=request.seconds, num_steps=num_steps)
    except RuntimeError as error:  # of torch: out of memory, unsupported operations
        raise ConfigError(f"study={request.name}: no step could be measured ({first_line(error)})") from error
    return kinds_table(anatomy, str(subject))


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
        raise ConfigError(f"study=anatomy: the profiler saw no kernel; {PERMISSION}")
    return Anatomy(
        num_images=subject.num_images,
        step_seconds=step_seconds,
        kernel_seconds=kernels,
        flops=TRAINING_FORWARDS * forward_flops(net, subject.image_size) * float(subject.num_images),
        peak=matmul_peak(subject.device, subject.products, seconds=seconds / 2),
        group_seconds=seconds_of_groups(profiled, num_steps=num_steps, on_gpu=subject.on_gpu),
    )


def kinds_table(anatomy: Anatomy, title: str) -> Table:
    """Times of each kind of operation, and the FLOPs of contractions beside the peak.

    Source of the kinds: Ivanov et al., Data Movement Is All You Need, 2020, arXiv:2007.00072, table 1. MFU is defined
    as in Chowdhery et al., PaLM, arXiv:2204.02311, except that PaLM uses the peak of the data sheet.
    """
    seconds = anatomy.group_seconds
    total, peak = sum(seconds.values()), anatomy.peak.tflops_per_second
    columns = (
        *(Column("operations"), Column("ms/step", "{:,.2f}"), Column("time %", "{:.1f}")),
        *(Column("GFLOP/step", "{:,.1f}"), Column("TFLOP/s", "{:,.3g}"), Column("% of the peak", "{:.1f}")),
    )

    def row(name: str, duration: float, share: float | None, flops: float | None) -> tuple[Cell, ...]:
        rate = flops and flops / duration / 1e12
        return name, 1000 * duration, share, flops and flops / 1e9, rate, rate and 100 * rate / peak

    kinds = ((group, each, 100 * each / total) for group, each in seconds.items())
    rows = (
        *(row(*kind, anatomy.flops if kind[0] == CONTRACTION else None) for kind in kinds),
        row("whole step", anatomy.step_seconds, None, anatomy.flops),
    )
    notes = [
        f"The peak, {peak:,.3g} TFLOP/s, is the fastest square matrix product measured here, {anatomy.peak.size} x "
        f"{anatomy.peak.size}. The percentage of the whole step is the MFU (model FLOPs utilisation), at "
        f"{anatomy.num_images / anatomy.step_seconds:,.0f} images/s, not compiled.",
    ]
    if anatomy.kernel_seconds is not None:
        notes.append(gaps_sentence(anatomy.step_seconds, anatomy.kernel_seconds))
    finding = (
        "Contractions (convolutions, matrix products) have nearly all FLOPs and "
        f"{100 * seconds[CONTRACTION] / total:.1f} % of the time; in BERT, 99.8 and 61 % (arXiv:2007.00072)."
    )
    return Table(f"Kinds of operations: {title}", columns, rows, tuple(notes), finding=finding)
