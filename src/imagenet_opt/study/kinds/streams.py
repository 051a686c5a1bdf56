"""Study `streams`: speed of training several batches at the same time on CUDA streams of their own."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from torch import Tensor, nn

from imagenet_opt.display.table import RATIOS, Cell, Column, Plot, Series, Table, interval, ratio_cells, series
from imagenet_opt.measure.stats.block_ratios import Ratio, measured_ratios
from imagenet_opt.measure.stats.intervals import median_interval
from imagenet_opt.measure.stats.rounds import Rounds
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.probe.device_peak import seconds_per_call
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

    Each batch has its own gradients, since adding to the same memory from several streams at once would be wrong.
    Buffers are shared; training does not read batch norm's running statistics, so their order does not matter.
    """
    main = torch.cuda.current_stream()
    gradients_of: list[tuple[Tensor, ...]] = []
    for loss, stream in zip(losses, streams, strict=True):
        stream.wait_stream(main)  # for the weights, and for memory that was used there
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
    """Train each batch on its own stream; each waits for the step before, because it starts with the new weights."""
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
_OF_A_STEP_EACH = (EACH, EACH_ON_STREAMS)
_AGAINST = {EACH: ADDED, EACH_ON_STREAMS: EACH, STREAMS: ADDED, WHOLE: ADDED}
"""What each is compared with."""
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
"""Left out where no row has one, as on a CPU."""


class Options(BaseModel):
    """num_batches: numbers of batches that are trained together, one for each part of the table."""

    model_config = ConfigDict(extra="forbid")
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
    turns = {f"{num} {way}": turn for num in options.num_batches for way, turn in _turns(subject, num, request.seconds)}
    rounds = run_rounds(turns, request, Trained, subject=asdict(subject))
    return [table_of(rounds, subject, options.num_batches)]


def _turns(subject: SyntheticStep, num_batches: int, seconds: float) -> list[tuple[str, Callable[[], Trained]]]:
    on_gpu = subject.device.type == "cuda"
    ways = [way for way in (EACH, EACH_ON_STREAMS, ADDED, STREAMS, WHOLE) if on_gpu or way not in _ON_STREAMS]
    return [(way, partial(train, subject, num_batches, way, seconds)) for way in ways]


def train(subject: SyntheticStep, num_batches: int, way: str, seconds: float) -> Trained:
    """Train this many batches repeatedly. Raises TurnFailed, for example if they do not fit into the GPU's memory."""
    on_gpu = subject.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(subject.device)
    with what_torch_refuses():
        taken = seconds_per_call(_step(subject, num_batches, way), seconds=seconds, settle=subject.settle)
    peak = peak_gib(subject.device) if on_gpu else None
    return Trained(num_batches * subject.num_images / taken, peak)


def _step(subject: SyntheticStep, num_batches: int, way: str) -> Callable[[], None]:
    """What trains all batches once."""
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

    def alone(loss: Loss) -> None:
        loss().backward()
        update()

    def step() -> None:
        if way == EACH_ON_STREAMS:
            in_turn_on_streams([partial(alone, loss) for loss in losses], streams)
        elif way == EACH:
            for loss in losses:
                alone(loss)
        else:
            backward_on_streams(losses, list(net.parameters()), streams) if streams else backward_in_turn(losses)
            update()

    return step


def table_of(rounds: Rounds[Trained], subject: SyntheticStep, counts: tuple[int, ...]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    curves: list[Series] = []
    for num in counts:
        ways = {name.removeprefix(f"{num} "): name for name in rounds.results if name.startswith(f"{num} ")}
        rates = {way: [trained.images_per_second for trained in rounds.results[name]] for way, name in ways.items()}
        peaks = {way: [trained.peak_gib for trained in rounds.results[name]] for way, name in ways.items()}
        pairs = [(way, _AGAINST[way]) for way in rates if way in _AGAINST]
        ratios = measured_ratios(rates, pairs, num_comparisons=len(counts) * len(pairs))
        whole = {way: rate for way, rate in rates.items() if ways[way] not in rounds.failures}
        rows += [_row(num, way, whole.get(way), ratios.get(way), peaks[way][-1:]) for way in ways]
        curves.append(series(f"{num} batches", {way: median_interval(rate) for way, rate in whole.items()}))
    has_peak = any(row[-1] is not None for row in rows)
    return Table(
        f"Several batches of {subject}",
        (*_COLUMNS, _PEAK) if has_peak else _COLUMNS,
        tuple(row if has_peak else row[:-1] for row in rows),
        (*rounds.reasons, *_words(subject)),
        (Plot("Several batches at a time", "", "images/s", "bars", tuple(curves)),),
    )


def _row(
    num: int, way: str, rates: list[float] | None, ratio: Ratio | None, peaks: list[float | None]
) -> tuple[Cell, ...]:
    """A way that failed, if only in one round, has no numbers: the reason stands below."""
    steps = float(num if way in _OF_A_STEP_EACH else 1)
    if rates is None:
        return (str(num), way, steps, *[None] * 7)
    rate = median_interval(rates)
    against = None if ratio is None else _SHORT[_AGAINST[way]]
    return (str(num), way, steps, rate.median, interval(rate, "{:,.0f}"), against, *ratio_cells(ratio), *peaks)


def _words(subject: SyntheticStep) -> tuple[str, ...]:
    note = (
        "Rows with one step train with a larger batch: it wants a learning rate of its own, and an epoch has fewer "
        "steps."
    )
    if subject.device.type == "cuda":
        return (
            note,
            RATIOS,
            "A step begins with the weights that the step before has made: on streams of their own, too, a step waits "
            "for the one before, and the row says what these streams bring. Batches that share a step wait for none; "
            "each then has activations and gradients of its own, and one thread of Python launches them all.",
        )
    return (
        note,
        RATIOS,
        "No rows with streams, as CUDA streams need a GPU, and this ran on the CPU. Memory is not measured here: a "
        "process has no peak of its own for each row.",
    )
