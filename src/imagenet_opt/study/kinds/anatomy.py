"""Study `anatomy`: splits one training step into kinds of operations, and compares them with the device's limits."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import BaseModel, Field, TypeAdapter

from imagenet_opt.display.progress import announced
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.measure.telemetry.torch_profile import (
    PERMISSION,
    LaunchGaps,
    Operation,
    kernel_seconds,
    timed_operations,
)
from imagenet_opt.probe.device_peak import MatmulPeak, matmul_peak, memory_bandwidth, seconds_per_call
from imagenet_opt.probe.isolated import call_isolated, limit
from imagenet_opt.study.kinds.op_counter import Part, counted_work, parts
from imagenet_opt.study.kinds.synthetic_step import subject_of
from imagenet_opt.study.kinds.training_step import Compiled, TrainingStep, compiled, profiled
from imagenet_opt.study.request import Request, checked_options
from imagenet_opt.training.quiet import quiet

_MEMORY_BOUND = ("normalisation", "element-wise")
"""Groups whose time depends on memory bandwidth, not on FLOP/s."""


class Options(BaseModel, extra="forbid"):
    """num_steps: number of profiled steps. num_operations: number of operations in the table."""

    num_steps: int = Field(ge=1, le=1000)
    num_operations: int = Field(ge=1)


@dataclass(frozen=True)
class Job:
    overrides: tuple[str, ...]
    seconds: float
    num_steps: int


@dataclass(frozen=True)
class Anatomy:
    """Measurements of one training step.

    step_seconds: mean of unprofiled, uncompiled steps. kernel_seconds: time of kernels in it; None without a GPU.
    bandwidth: GB/s. compiled: None if the configuration does not compile.
    """

    device: str
    dtype: str
    num_images: int
    step_seconds: float
    kernel_seconds: float | None
    peak: MatmulPeak
    bandwidth: float
    parts: tuple[Part, ...]
    operations: tuple[Operation, ...]
    compiled: Compiled | None


ANATOMY = TypeAdapter(Anatomy)
"""Builds an Anatomy from JSON values."""


def run(request: Request) -> list[Table]:
    """Measure and return the tables. Raises ImagenetOptError."""
    options = checked_options(Options, request)
    with announced(1) as announce:
        announce("one training step, taken apart")
        job = Job(request.overrides, request.seconds, options.num_steps)
        try:
            values = call_isolated(f"{__name__}.measured", job, limit_seconds=limit(job.seconds))
        except TurnFailed as error:
            raise ConfigError(f"study={request.name}: no step could be measured ({error})") from error
    return tables_of(ANATOMY.validate_python(values), options.num_operations)


def measured(job: Job) -> dict[str, Any]:
    """Measure an Anatomy and return it as JSON values; called in a process of its own. Raises TurnFailed."""
    quiet()
    subject = subject_of(job.overrides)
    subject.prepare()
    step, device = TrainingStep(subject), subject.device
    on_gpu = device.type == "cuda"
    step_seconds = seconds_per_call(step, seconds=job.seconds, settle=subject.settle)
    profile = profiled(step, job.num_steps)
    in_kernels = seen(kernel_seconds(profile, num_steps=job.num_steps)) if on_gpu else None
    operations = timed_operations(profile, num_steps=job.num_steps, on_gpu=on_gpu)
    anatomy = Anatomy(
        device=torch.cuda.get_device_name(device) if on_gpu else "the CPU",
        dtype=str(subject.products).removeprefix("torch."),
        num_images=subject.num_images,
        step_seconds=step_seconds,
        kernel_seconds=in_kernels,
        peak=matmul_peak(device, subject.products, seconds=job.seconds / 2),
        bandwidth=memory_bandwidth(device, seconds=job.seconds / 4),
        parts=tuple(parts(operations, counted_work(step.forward_backward, step.update))),
        operations=tuple(operations),
        compiled=compiled(step, seconds=job.seconds),
    )
    return asdict(anatomy)


def seen(seconds: float) -> float:
    """Time of the kernels on a GPU. Raises TurnFailed if none could be observed, as in containers without
    permission."""
    if not seconds:
        raise TurnFailed(f"the profiler saw no kernel; {PERMISSION}")
    return seconds


def tables_of(anatomy: Anatomy, num_operations: int) -> list[Table]:
    """Build the tables. num_operations: number of operations shown."""
    return [_groups(anatomy), _operations(anatomy, num_operations), _limits(anatomy)]


def _groups(anatomy: Anatomy) -> Table:
    """Table of times and FLOPs by kind of operation."""
    columns = (
        Column("operations"),
        Column("ms/step", "{:,.2f}"),
        Column("time %", "{:.1f}"),
        Column("GFLOP/step", "{:,.3f}"),
        Column("FLOPs %", "{:.2f}"),
        Column("GFLOP/s", "{:,.0f}"),
        Column("GB/step", "{:,.3f}"),
        Column("GB/s", "{:,.1f}"),
    )
    rows = tuple(
        (
            part.group,
            1000 * part.seconds,
            100 * part.time_share,
            part.flops / 1e9,
            100 * part.flop_share,
            part.gflops_per_second,
            part.num_bytes / 1e9,
            part.gb_per_second,
        )
        for part in anatomy.parts
    )
    groups = tuple(part.group for part in anatomy.parts)
    series = (
        Series("time", groups, tuple(100 * part.time_share for part in anatomy.parts)),
        Series("FLOPs", groups, tuple(100 * part.flop_share for part in anatomy.parts)),
    )
    plot = Plot("Shares of a training step", "operations", "%", "bars", series)
    finding, *notes = _group_notes(anatomy)
    return Table("Kinds of operations", columns, rows, tuple(notes), (plot,), finding=finding)


def _group_notes(anatomy: Anatomy) -> tuple[str, str]:
    contraction = anatomy.parts[0]
    clock = "kernels on the GPU"
    if anatomy.kernel_seconds is None:
        clock = "the CPU in each operation, without the operations that it calls"
    return (
        f"Contractions (convolutions, matrix products) have {100 * contraction.flop_share:.2f} % of the FLOPs and "
        f"{100 * contraction.time_share:.1f} % of the time; in BERT, 99.8 and 61 % (Ivanov et al., arXiv:2007.00072).",
        f"Times are those of {clock}, in a step that is not compiled. torch counts the FLOPs of contractions; other "
        "operations count one FLOP for each element. GB are the minimum: each operation reads its inputs and writes "
        "its outputs once. Copies within other operations are timed, but their bytes are not counted. A rate above "
        "the memory's bandwidth means that caches helped.",
    )


def _operations(anatomy: Anatomy, num_operations: int) -> Table:
    total_seconds = sum(operation.seconds for operation in anatomy.operations)
    columns = (
        Column("operation"),
        Column("kind"),
        Column("calls/step", "{:,.0f}"),
        Column("ms/step", "{:,.2f}"),
        Column("time %", "{:.1f}"),
    )
    rows = tuple(
        (shown.name, shown.group, shown.num_calls, 1000 * shown.seconds, 100 * shown.seconds / total_seconds)
        for shown in anatomy.operations[:num_operations]
    )
    rest = len(anatomy.operations) - len(rows)
    return Table("Operations that take longest", columns, rows, (f"{rest} others are shorter.",) if rest > 0 else ())


def _limits(anatomy: Anatomy) -> Table:
    """Table of what the step reaches and what the device can reach."""
    how = ", not compiled" if anatomy.compiled else ""
    rows = _rates(anatomy, anatomy.step_seconds, how)
    if anatomy.compiled and anatomy.compiled.seconds:
        rows += _rates(anatomy, anatomy.compiled.seconds, ", compiled")
    rows += [
        (f"measured peak, {anatomy.dtype}, {anatomy.peak.size} x {anatomy.peak.size}", anatomy.peak[0], "TFLOP/s"),
        ("measured memory bandwidth", anatomy.bandwidth, "GB/s"),
    ]
    note = "No GPU here, so there are no gaps between kernels to measure."
    if anatomy.kernel_seconds is not None:
        gaps = LaunchGaps(anatomy.step_seconds, anatomy.kernel_seconds)
        rows += [(f"time in which no kernel runs{how}", 100 * gaps.gap_share, "%")]
        note = gaps.sentence()[:1].upper() + gaps.sentence()[1:] + "."
    columns = (Column(f"on {anatomy.device}"), Column("measured", "{:,.4g}"), Column("unit"))
    return Table("The step beside what the device can do", columns, tuple(rows), (*_limit_notes(anatomy), note))


def _rates(anatomy: Anatomy, seconds: float, how: str) -> list[tuple[Cell, ...]]:
    """Rates of a step with this duration; its FLOPs are those of the network, compiled or not."""
    achieved = anatomy.parts[0].flops / seconds / 1e12
    return [
        (f"training step{how}", 1000 * seconds, "ms"),
        (f"training{how}", anatomy.num_images / seconds, "images/s"),
        (f"contractions of the step{how}", achieved, "TFLOP/s"),
        (f"model FLOPs utilisation (MFU) of the measured peak{how}", 100 * achieved / anatomy.peak[0], "%"),
    ]


def _limit_notes(anatomy: Anatomy) -> list[str]:
    notes = [
        "The peak is the fastest square matrix product measured here. MFU is defined as in Chowdhery et al., PaLM, "
        "arXiv:2204.02311, except that PaLM uses the peak of the data sheet."
    ]
    if (compiled := anatomy.compiled) and compiled.failure:
        notes.append(f"The step could not be compiled (callbacks.acceleration.compile=true): {compiled.failure}.")
    elif compiled:
        notes.append(
            f"The compiled step, in the mode {compiled.mode}, was timed last, without "
            "callbacks.acceleration.cuda_graph. Kinds, operations and gaps between kernels are those of the step that "
            "is not compiled."
        )
    moving = [part for part in anatomy.parts if part.group in _MEMORY_BOUND]
    if seconds := sum(part.seconds for part in moving):
        rate = sum(part.num_bytes for part in moving) / seconds / 1e9
        notes.append(
            f"Normalisations and element-wise operations take {100 * sum(part.time_share for part in moving):.1f} % of "
            f"the time and move {rate:,.1f} GB/s or more, {100 * rate / anatomy.bandwidth:.0f} % of the memory's "
            "bandwidth. Near 100 %, only moving fewer bytes helps: fused kernels "
            "(callbacks.acceleration.compile=true) or 16 bits. Far below 100 %, launches or single threads are the "
            "limit."
        )
    return notes
