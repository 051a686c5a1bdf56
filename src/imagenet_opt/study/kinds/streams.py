"""Study `streams`: speed of training several batches at the same time on CUDA streams of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import BaseModel, Field, PositiveInt
from torch import Tensor, nn

from imagenet_opt.display.table import Column, Table
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.study.kinds.comparison import Comparison, Setting, run_rounds
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep
from imagenet_opt.study.request import Request, checked_options

Loss = Callable[[], Tensor]
"""Mean loss of one batch, computed when called."""


def backward_in_turn(losses: Sequence[Loss]) -> None:
    """Compute the gradients of the mean loss of all batches, one after the other, as accumulation does."""
    for loss in losses:
        (loss() / len(losses)).backward()


def backward_on_streams(
    losses: Sequence[Loss], parameters: Sequence[nn.Parameter], streams: Sequence[torch.cuda.Stream]
) -> None:
    """Compute the same gradients with each batch on its own stream.

    Each batch has its own gradients, since several streams must not add to the same memory at once. Buffers are shared:
    training does not read the running statistics of batch norm, so the order of their updates does not matter.
    """
    main = torch.cuda.current_stream()
    gradients_of: list[tuple[Tensor, ...]] = []
    for loss, stream in zip(losses, streams, strict=True):
        stream.wait_stream(main)  # until the weights are ready and reused memory is free
        with torch.cuda.stream(stream):
            gradients_of.append(torch.autograd.grad(loss() / len(losses), parameters))
    for stream in streams:
        main.wait_stream(stream)
    total = list(gradients_of[0])
    for gradients in gradients_of[1:]:
        torch._foreach_add_(total, list(gradients))
    for parameter, gradient in zip(parameters, total, strict=True):
        parameter.grad = gradient


ADDED = "one after the other, gradients added"
STREAMS = "on streams of their own, gradients added"
WHOLE = "as one batch"
_BASELINES = {ADDED: None, STREAMS: ADDED, WHOLE: ADDED}


class Options(BaseModel, extra="forbid"):
    """num_batches: numbers of batches that are trained together; each number is a part of the table."""

    num_batches: tuple[PositiveInt, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Trained:
    """peak_gib: peak GPU memory reserved by torch; None on a CPU."""

    images_per_second: float
    peak_gib: float | None


def run(request: Request) -> list[Table]:
    """Measure and return the table. Raises ImagenetOptError."""
    options, subject = checked_options(Options, request), SyntheticStep(request.overrides)
    settings = {
        f"{num} batches {way}": Setting(
            (str(num), way),
            partial(train, subject, num, way, request.seconds),
            against=base and f"{num} batches {base}",
            curve=f"{num} batches",
            x=way,
        )
        for num in options.num_batches
        for way, base in _BASELINES.items()
        if subject.on_gpu or way != STREAMS
    }
    comparison = Comparison(
        f"Several batches of {subject}",
        ("batches", "how"),
        "images/s",
        lambda trained: trained.images_per_second,
        settings,
        run_rounds(settings, request, Trained),
        more={Column("peak GiB", "{:.2f}"): lambda _, turns: turns[-1].peak_gib} if subject.on_gpu else {},
    )
    note = "All rows train with a larger batch, which needs its own learning rate; an epoch has fewer steps."
    left_out = () if subject.on_gpu else ("Streams: they need a GPU.",)
    return [comparison.table(note, left_out=left_out)]


def train(subject: SyntheticStep, num_batches: int, way: str, seconds: float) -> Trained:
    """Train this many batches repeatedly."""
    if subject.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(subject.device)
    step_seconds = subject.seconds(_step(subject, num_batches, way), seconds)
    peak = peak_gib(subject.device) if subject.on_gpu else None
    return Trained(num_batches * subject.num_images / step_seconds, peak)


def _step(subject: SyntheticStep, num_batches: int, way: str) -> Callable[[], object]:
    """A function that trains all batches once."""
    net = subject.net()
    optimizer, batches = subject.optimizer(net), [subject.batch() for _ in range(num_batches)]
    if way == WHOLE:
        batches = [tuple(map(torch.cat, zip(*batches, strict=True)))]  # type: ignore[list-item]
    losses: list[Loss] = [partial(subject.loss, net, *batch) for batch in batches]
    streams = [torch.cuda.Stream(subject.device) for _ in losses if way == STREAMS]

    parameters = list(net.parameters())

    def step() -> None:
        if streams:
            backward_on_streams(losses, parameters, streams)
        else:
            backward_in_turn(losses)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
