"""Study `torchscript`: speed of scripted, traced, compiled, and scripted and compiled networks."""

import tempfile
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

from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.display.table import RATIOS, Cell, Column, Plot, Table, ratio_cells
from imagenet_opt.measure.stats.paired_ratios import measured_ratios
from imagenet_opt.probe.device_peak import seconds_per_call
from imagenet_opt.probe.isolated import call_isolated, limit
from imagenet_opt.study.kinds.ratio_table import complete_values, median_cells, median_series
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep, subject_of
from imagenet_opt.study.request import Request, checked_options
from imagenet_opt.study.turns import run_rounds

EAGER = "eager"
_WARMUP = 5
"""Passes: TorchScript's executor profiles the first passes and then compiles for their shapes."""
_COLUMNS = (
    Column("forms of the network"),
    Column("forward + backward, ms", "{:,.1f}"),
    Column("interval of ms"),
    Column("times as quick as eager", "{:.2f}"),
    Column("interval of times"),
    Column("verdict"),
    Column("until it runs, s", "{:.1f}"),
    Column("again, s", "{:.1f}"),
    Column("first loss", "{:.3f}"),
)


class Options(BaseModel, extra="forbid"):
    """This study has no options."""


@dataclass(frozen=True)
class Job:
    """way: a key of WAYS. seconds: of the timed stretch."""

    subject: SyntheticStep
    way: str
    seconds: float


@dataclass(frozen=True)
class Found:
    """seconds: of a forward and backward pass. ready_seconds: time to create the network and run its first passes.
    again: whether compiled code of an earlier process was on disk."""

    seconds: float
    ready_seconds: float
    first_loss: float
    again: bool


WAYS: dict[str, Callable[[Any, Tensor], Any]] = {
    EAGER: lambda net, images: net,
    # the check of a trace would compare random numbers and batch statistics
    "torch.jit.trace": lambda net, images: torch.jit.trace(net, images, check_trace=False),
    "torch.jit.script": lambda net, images: torch.jit.script(net),
    "torch.compile": lambda net, images: torch.compile(net),
    "torch.compile of torch.jit.script": lambda net, images: torch.compile(torch.jit.script(net)),
}


def run(request: Request) -> list[Table]:
    """Measure and return the tables. Raises ImagenetOptError."""
    checked_options(Options, request)
    subject = subject_of(request.overrides)
    with tempfile.TemporaryDirectory(prefix="imagenet_opt_compiled_") as cache:
        turns = {way: partial(_apart, Job(subject, way, request.seconds), Path(cache, way)) for way in WAYS}
        rounds = run_rounds(turns, request, Found, subject=asdict(subject))
    return [table_of(rounds, subject)]


def _apart(job: Job, cache: Path) -> Found:
    """Measure in a process of its own. cache: folder for compiled code; the first process of a form creates it."""
    again = cache.exists()
    cache.mkdir(exist_ok=True)
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    values = call_isolated(f"{__name__}.measure", job, limit_seconds=limit(job.seconds), environment=environment)
    return Found(**values, again=again)


def measure(job: Job) -> dict[str, float]:
    """Measure a form, in the process of the turn; an error of torch ends the process, and so the turn fails."""
    subject = job.subject
    subject.prepare()
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
    seconds = seconds_per_call(step, seconds=job.seconds, settle=subject.settle)
    return {"seconds": seconds, "ready_seconds": ready_seconds, "first_loss": losses[0]}


def table_of(rounds: Rounds[Found], subject: SyntheticStep) -> Table:
    """Rows of failed forms have no numbers; the reasons are in the notes."""
    milliseconds = complete_values(rounds, lambda result: 1000 * result.seconds)
    rates = {way: [1 / result.seconds for result in results] for way, results in rounds.results.items()}
    ratios = measured_ratios(rates, [(way, EAGER) for way in rates if way != EAGER])
    rows: list[tuple[Cell, ...]] = []
    for way, results in rounds.results.items():
        if way not in milliseconds:
            rows.append((way, *[None] * (len(_COLUMNS) - 1)))
            continue
        first, later = (
            [result.ready_seconds for result in results if result.again is again] for again in (False, True)
        )
        ready = (median(first), median(later) if later else None)
        pass_cells = median_cells(milliseconds[way], "{:,.1f}")
        rows.append((way, *pass_cells, *ratio_cells(ratios.get(way)), *ready, results[0].first_loss))
    failures = [
        f"{way} failed with torch {torch.__version__}: {why.rstrip('.')}." for way, why in rounds.failures.items()
    ]
    plot = Plot("A forward and backward pass", "", "ms", "bars", (median_series("forward + backward", milliseconds),))
    title = f"TorchScript beside torch.compile: {subject}"
    finding, *notes = _notes(rows)
    return Table(title, _COLUMNS, tuple(rows), (*failures, *notes), (plot,), finding=finding)


def _notes(rows: list[tuple[Cell, ...]]) -> list[str]:
    faster = [(float(row[3]), str(row[0])) for row in rows if row[5] == "faster" and isinstance(row[3], float)]
    if faster:
        gain, way = max(faster)
        conclusion = f"The fastest form here is {way}, {gain:.2f} times as fast as eager."
    elif any(row[5] for row in rows):
        conclusion = "No form is certain to be faster than eager here."
    else:
        conclusion = "No form could be compared with eager here."
    return [
        conclusion,
        RATIOS,
        "'Until it runs' is the time to build the form and to run its first five passes, eager's too; 'again' is the "
        "same time in a new process with torch.compile's cache on disk. Forms that compute the same have the same "
        "first loss.",
        "torch.jit is no longer developed, and fuses few operations in training. torch.compile captures its graph from "
        "Python code; a scripted network has no Python code left, so scripting before compiling gains nothing.",
    ]
