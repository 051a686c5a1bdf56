"""Study `streams`: speed of training several batches at the same time on CUDA streams of their own."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from pydantic import BaseModel, Field, PositiveInt
from torch import Tensor, nn

from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.display.table import RATIOS, Cell, Column, Plot, Series, Table, ratio_cells
from imagenet_opt.measure.stats.paired_ratios import measured_ratios
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.probe.device_peak import seconds_per_call
from imagenet_opt.study.kinds.ratio_table import median_cells, median_series
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep, subject_of
from imagenet_opt.study.request import Request, checked_options
from imagenet_opt.study.turns import run_rounds, what_torch_refuses

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
_BASELINES = {EACH: ADDED, EACH_ON_STREAMS: EACH, STREAMS: ADDED, WHOLE: ADDED}
_SHORT = {ADDED: "added in turn", EACH: "a step each in turn"}
_COLUMNS = (
    Column("batches"),
    Column("how"),
    Column("steps", "{:,.0f}"),
    Column("images/s", "{:,.0f}"),
    Column("interval of images/s"),
    Column("against"),
    Column("times", "{:.2f}"),
    Column("interval of times"),
    Column("verdict"),
)
_PEAK = Column("peak GiB", "{:.2f}")
"""This column is left out on a CPU, which has no peak memory for each row."""


class Options(BaseModel, extra="forbid"):
    """num_batches: numbers of batches that are trained together; each number is a part of the table."""

    num_batches: tuple[PositiveInt, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Trained:
    """peak_gib: peak GPU memory reserved by torch; None on a CPU."""

    images_per_second: float
    peak_gib: float | None


def run(request: Request) -> list[Table]:
    """Measure and return the tables. Raises ImagenetOptError."""
    options = checked_options(Options, request)
    subject = subject_of(request.overrides)
    subject.prepare()
    on_gpu = subject.device.type == "cuda"
    turns = {
        f"{num} {way}": partial(train, subject, num, way, request.seconds)
        for num in options.num_batches
        for way in (EACH, EACH_ON_STREAMS, ADDED, STREAMS, WHOLE)
        if on_gpu or way not in _ON_STREAMS
    }
    rounds = run_rounds(turns, request, Trained, subject=asdict(subject))
    return [table_of(rounds, subject, options.num_batches)]


def train(subject: SyntheticStep, num_batches: int, way: str, seconds: float) -> Trained:
    """Train this many batches repeatedly. Raises TurnFailed, for example if they do not fit into the GPU's memory."""
    on_gpu = subject.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(subject.device)
    with what_torch_refuses():
        step_seconds = seconds_per_call(_step(subject, num_batches, way), seconds=seconds, settle=subject.settle)
    return Trained(num_batches * subject.num_images / step_seconds, peak_gib(subject.device) if on_gpu else None)


def _step(subject: SyntheticStep, num_batches: int, way: str) -> Callable[[], None]:
    """A function that trains all batches once."""
    net = subject.net()
    optimizer = subject.build_optimizer(net)
    batches = [subject.batch() for _ in range(num_batches)]
    if way == WHOLE:
        batches = [tuple(torch.cat(parts) for parts in zip(*batches, strict=True))]  # type: ignore[list-item]
    losses: list[Loss] = [partial(subject.loss, net, images, labels) for images, labels in batches]
    streams = [torch.cuda.Stream(subject.device) for _ in losses] if way in _ON_STREAMS else []

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def train_alone(loss: Loss) -> None:
        loss().backward()
        update()

    def step() -> None:
        if way == EACH_ON_STREAMS:
            in_turn_on_streams([partial(train_alone, loss) for loss in losses], streams)
        elif way == EACH:
            for loss in losses:
                train_alone(loss)
        else:
            backward_on_streams(losses, list(net.parameters()), streams) if streams else backward_in_turn(losses)
            update()

    return step


def table_of(rounds: Rounds[Trained], subject: SyntheticStep, counts: tuple[int, ...]) -> Table:
    """Rows of failed turns have no numbers; the reasons are in the notes."""
    has_peak = any(turn.peak_gib is not None for turns in rounds.results.values() for turn in turns)
    rows: list[tuple[Cell, ...]] = []
    curves: list[Series] = []
    for num in counts:
        turns = {name.removeprefix(f"{num} "): of for name, of in rounds.results.items() if name.startswith(f"{num} ")}
        rates = {way: [turn.images_per_second for turn in of] for way, of in turns.items()}
        pairs = [(way, _BASELINES[way]) for way in rates if way in _BASELINES]
        ratios = measured_ratios(rates, pairs, num_comparisons=len(counts) * len(pairs))
        rates = {way: [] if f"{num} {way}" in rounds.failures else values for way, values in rates.items()}
        for way, values in rates.items():
            steps = float(num if way in (EACH, EACH_ON_STREAMS) else 1)
            ratio = ratios.get(way) if values else None
            against = _SHORT[_BASELINES[way]] if ratio else None
            peak = [turns[way][-1].peak_gib if values else None] if has_peak else []
            rates_of_way = median_cells(values, "{:,.0f}")
            rows.append((str(num), way, steps, *rates_of_way, against, *ratio_cells(ratio), *peak))
        curves.append(median_series(f"{num} batches", {way: values for way, values in rates.items() if values}))
    return Table(
        f"Several batches of {subject}",
        (*_COLUMNS, _PEAK) if has_peak else _COLUMNS,
        tuple(rows),
        (*rounds.reasons, *_notes(on_gpu=subject.device.type == "cuda")),
        (Plot("Several batches at a time", "", "images/s", "bars", tuple(curves)),),
        finding=_finding(curves),
    )


def _finding(curves: list[Series]) -> str:
    rates = [(y, f"{curve.name}, {x}") for curve in curves for x, y in zip(curve.x, curve.y, strict=True)]
    return f"Most images a second: {max(rates)[1]}, {max(rates)[0]:,.0f} images/s." if rates else ""


def _notes(*, on_gpu: bool) -> tuple[str, str, str]:
    return (
        "Rows with one step train with a larger batch, which needs its own learning rate; an epoch then has fewer "
        "steps.",
        RATIOS,
        "Each step starts with the weights of the step before. So a step on its own stream still waits for the step "
        "before it, and its row shows what the stream gains. Batches that share a step do not wait for each other; "
        "each has its own activations and gradients, and one Python thread launches all of them."
        if on_gpu
        else "Rows with streams are left out: CUDA streams need a GPU, and this ran on the CPU. Peak memory is left "
        "out: on a CPU a process has no separate peak for each row.",
    )
