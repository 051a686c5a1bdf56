"""Study `torchscript`: speed of scripted, traced, compiled, and scripted and compiled networks."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor

from imagenet_opt.compare.turn import apart
from imagenet_opt.display.table import Column, Table
from imagenet_opt.study.kinds.comparison import Comparison, Setting, run_rounds
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep
from imagenet_opt.study.request import Request, checked_options

EAGER = "eager"
_WARMUP = 5
"""Passes: TorchScript's executor profiles the first passes and then compiles for their shapes."""
WAYS: dict[str, Callable[[Any, Tensor], Any]] = {
    EAGER: lambda net, images: net,
    # the check of a trace would compare random numbers and batch statistics
    "torch.jit.trace": lambda net, images: torch.jit.trace(net, images, check_trace=False),
    "torch.jit.script": lambda net, images: torch.jit.script(net),
    "torch.compile": lambda net, images: torch.compile(net),
    "torch.compile of torch.jit.script": lambda net, images: torch.compile(torch.jit.script(net)),
}


class Options(BaseModel, extra="forbid"):
    """This study has no options."""


@dataclass(frozen=True)
class Job:
    """way: a key of WAYS. seconds: of the timed stretch."""

    overrides: tuple[str, ...]
    way: str
    seconds: float


@dataclass(frozen=True)
class Found:
    """images_per_second: of forward and backward passes. ready_seconds: time to create the network and run its first
    passes."""

    images_per_second: float
    ready_seconds: float
    first_loss: float


def run(request: Request) -> list[Table]:
    """Measure and return the table. Raises ImagenetOptError."""
    checked_options(Options, request)
    settings = {
        way: Setting(
            (way,),
            partial(_apart, Job(request.overrides, way, request.seconds), request.folder),
            against=None if way == EAGER else EAGER,
            curve="forward + backward",
            x=way,
        )
        for way in WAYS
    }
    comparison = Comparison(
        f"TorchScript beside torch.compile: {SyntheticStep(request.overrides)}",
        ("form of the network",),
        "images/s",
        lambda found: found.images_per_second,
        settings,
        run_rounds(settings, request, Found),
        more={
            Column("until it runs, s", "{:.1f}"): lambda _, turns: turns[0].ready_seconds,
            Column("again, s", "{:.1f}"): lambda _, turns: median(turn.ready_seconds for turn in turns[1:] or turns),
            Column("first loss", "{:.3f}"): lambda _, turns: turns[0].first_loss,
        },
    )
    return [
        comparison.table(
            "'Until it runs' is the time to build the form and to run its first five passes, eager's too; 'again' is "
            "the same time in a new process with torch.compile's cache on disk. Forms that compute the same have the "
            "same first loss."
        )
    ]


def _apart(job: Job, folder: Path) -> Found:
    """Measure in a process of its own. folder: keeps the compiled code of the first process for the next ones."""
    values: Any = apart(f"{__name__}.measure", job, folder / job.way, timed_seconds=job.seconds)
    return Found(**values)


def measure(job: Job) -> dict[str, float]:
    """Measure a form, in the process of the turn; an error of torch ends the process, and so the turn fails."""
    subject = SyntheticStep(job.overrides)
    net, (images, labels) = subject.net(), subject.batch()
    began = time.perf_counter()
    with subject.autocast():
        form = WAYS[job.way](net, images)

    def step() -> Tensor:
        net.zero_grad(set_to_none=True)
        loss = subject.loss(form, images, labels)
        loss.backward()
        return loss.detach()

    losses = [float(step()) for _ in range(_WARMUP)]
    subject.settle()
    ready_seconds = time.perf_counter() - began
    return asdict(Found(subject.num_images / subject.seconds(step, job.seconds), ready_seconds, losses[0]))
