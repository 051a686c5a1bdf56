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
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from imagenet_opt.display.table import RATIOS, Cell, Column, Plot, Table, interval, ratio_cells, series
from imagenet_opt.measure.stats.block_ratios import measured_ratios
from imagenet_opt.measure.stats.intervals import median_interval
from imagenet_opt.measure.stats.rounds import Rounds
from imagenet_opt.probe.device_peak import seconds_per_call
from imagenet_opt.probe.isolated import call_isolated, limit
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep, subject_of
from imagenet_opt.study.request import Request, checked_options
from imagenet_opt.study.turns import run_rounds

EAGER = "eager"
_WARMUP = 5
"""TorchScript's executor watches the first passes and compiles for what it has seen."""
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


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Job:
    """way: one of WAYS. seconds: of the timed stretch."""

    subject: SyntheticStep
    way: str
    seconds: float


@dataclass(frozen=True)
class Found:
    """seconds: of a forward and backward pass. ready_seconds: time to create the network and run its first passes.
    again: the same in a process that finds on disk what the first process compiled."""

    seconds: float
    ready_seconds: float
    first_loss: float
    again: bool


def _trace(net: Any, images: Tensor) -> Any:
    return torch.jit.trace(net, images, check_trace=False)  # its check compares random and batch statistics


WAYS: dict[str, Callable[[Any, Tensor], Any]] = {
    EAGER: lambda net, images: net,
    "torch.jit.trace": _trace,
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
    """Measure in a process of its own. cache: folder for torch's compiled code; does not exist before the first
    process of this form."""
    again = cache.exists()
    cache.mkdir(exist_ok=True)
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    values = call_isolated(f"{__name__}.measure", job, limit_seconds=limit(job.seconds), environment=environment)
    return Found(**values, again=again)


def measure(job: Job) -> dict[str, float]:
    """Runs in a process of its own. If torch refuses, the turn fails with torch's reason."""
    subject = job.subject
    subject.prepare()
    net, (images, labels) = subject.net(), subject.batch()
    began = time.perf_counter()
    with subject.autocast():
        made = WAYS[job.way](net, images)

    def step() -> Tensor:
        net.zero_grad(set_to_none=True)
        loss = subject.loss(made, images, labels)
        loss.backward()
        return loss.detach()

    losses = [float(step()) for _ in range(_WARMUP)]
    subject.settle()
    ready_seconds = time.perf_counter() - began
    seconds = seconds_per_call(step, seconds=job.seconds, settle=subject.settle)
    return {"seconds": seconds, "ready_seconds": ready_seconds, "first_loss": losses[0]}


def table_of(rounds: Rounds[Found], subject: SyntheticStep) -> Table:
    seconds = {way: [result.seconds for result in results] for way, results in rounds.results.items()}
    rates = {way: [1 / value for value in values] for way, values in seconds.items()}
    ratios = measured_ratios(rates, [(way, EAGER) for way in rates if way != EAGER])
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    for way, results in rounds.results.items():
        if way in rounds.failures:
            rows.append((way, *[None] * (len(_COLUMNS) - 1)))
            notes.append(f"{way} failed with torch {torch.__version__}: {rounds.failures[way].rstrip('.')}.")
            continue
        duration, answer = median_interval(ms(seconds[way])), ratio_cells(ratios.get(way))
        first, later = (
            [result.ready_seconds for result in results if result.again is again] for again in (False, True)
        )
        ready = (median(first), median(later) if later else None)
        rows.append((way, duration.median, interval(duration, "{:,.1f}"), *answer, *ready, results[0].first_loss))
    return Table(
        f"TorchScript beside torch.compile: {subject}",
        _COLUMNS,
        tuple(rows),
        (*notes, *_answer(rows)),
        (_plot(seconds, rounds),),
    )


def _answer(rows: list[tuple[Cell, ...]]) -> list[str]:
    """Describe the result in a sentence."""
    quicker = [(float(row[3]), str(row[0])) for row in rows if row[5] == "faster" and isinstance(row[3], float)]
    if quicker:
        gain, way = max(quicker)
        answer = f"The quickest form here is {way}, {gain:.2f} times as quick as eager."
    elif any(row[5] for row in rows):
        answer = "No form is certain to be quicker than eager here."
    else:
        answer = "Nothing could be compared with eager here."
    return [
        answer,
        RATIOS,
        "'Until it runs' is the time to build the variant and to make its first five passes, which eager makes too; "
        "'again' is the same in a new process with torch.compile's cache on disk. Variants that compute the same have "
        "the same first loss.",
        "torch.jit is no longer developed, and fuses little in training. torch.compile makes its graph from the Python "
        "code; a scripted network has none left, so scripting first brings nothing.",
    ]


def _plot(seconds: dict[str, list[float]], rounds: Rounds[Found]) -> Plot:
    whole = {way: median_interval(ms(of)) for way, of in seconds.items() if way not in rounds.failures}
    return Plot("A forward and backward pass", "", "ms", "bars", (series("forward + backward", whole),))


def ms(seconds: list[float]) -> list[float]:
    return [1000 * value for value in seconds]
