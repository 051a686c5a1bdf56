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


def in_turn_on_streams(steps: Sequence[Callable[[], object]], streams: Sequence[torch.cuda.Stream]) -> None:
    """Train each batch on its own stream; each step waits for the step before, because it needs the new weights."""
    before = main = torch.cuda.current_stream()
    for step, stream in zip(steps, streams, strict=True):
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            step()
        before = stream
    main.wait_stream(before)


EACH = "one after the other, a step each"
EACH_ON_STREAMS = "a step each, each on a stream of its own (waits for the one before)"
ADDED = "one after the other, gradients added, one step"
STREAMS = "on streams of their own, gradients added, one step"
WHOLE = "as one batch, one step"
_ON_STREAMS = (EACH_ON_STREAMS, STREAMS)
_BASELINES = {EACH: ADDED, EACH_ON_STREAMS: EACH, ADDED: None, STREAMS: ADDED, WHOLE: ADDED}


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
        if subject.on_gpu or way not in _ON_STREAMS
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
    note = "Rows with one step train with a larger batch, which needs its own learning rate; an epoch has fewer steps."
    left_out = () if subject.on_gpu else ("Rows with streams: CUDA streams need a GPU.",)
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
    streams = [torch.cuda.Stream(subject.device) for _ in losses] if way in _ON_STREAMS else []

    def step(backward: Callable[[], None]) -> None:
        backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    steps = [partial(step, partial(backward_in_turn, [loss])) for loss in losses]
    if way == EACH:
        return lambda: [one() for one in steps]
    if way == EACH_ON_STREAMS:
        return partial(in_turn_on_streams, steps, streams)
    parameters = list(net.parameters())
    together = (
        partial(backward_on_streams, losses, parameters, streams) if streams else partial(backward_in_turn, losses)
    )
    return partial(step, together)
