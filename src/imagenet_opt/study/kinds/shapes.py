"""Study `shapes`: the cost of layer sizes that are not multiples of 8 or 64, which tensor cores prefer."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median

import torch
from pydantic import BaseModel, Field, PositiveInt
from torch import nn

from imagenet_opt.display.table import RATIOS, Cell, Column, Plot, Table, ratio_cells, shape_of
from imagenet_opt.measure.stats.paired_ratios import Ratio, measured_ratios
from imagenet_opt.probe.device_peak import seconds_per_call
from imagenet_opt.study.kinds.ratio_table import median_cells, median_series
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep, subject_of
from imagenet_opt.study.request import Request, checked_options
from imagenet_opt.study.turns import run_rounds, what_torch_refuses

MULTIPLES = (64, 8)


def multiple_of(size: int) -> int:
    """64, 8, or 1 if the size is a multiple of neither."""
    return next((multiple for multiple in MULTIPLES if size % multiple == 0), 1)


def neighbour(size: int, sizes: Sequence[int]) -> int | None:
    """The nearest of `sizes` with a larger `multiple_of`; the larger if two are equally near; None if there is none."""
    better = [other for other in sizes if multiple_of(other) > multiple_of(size)]
    return min(better, key=lambda other: (abs(other - size), -other), default=None)


def padded_share(size: int, multiple: int, power: int) -> float:
    """Useful share of the work, 0 to 1, if sizes are padded to a multiple. The work grows with size ** power."""
    return (size / (-(-size // multiple) * multiple)) ** power


CHANNELS, BATCH, OUTPUTS = "convolution: channels", "last layer: batch", "last layer: outputs"
_VARIES = (CHANNELS, BATCH, OUTPUTS)
_FEATURES, _CLASSES, _STRIDE = 2048, 1000, 16
"""Of ResNet-50: inputs and outputs of the last layer, and image size / size of the third stage's feature maps (arXiv
1512.03385, table 1)."""
_PASSES = 3
"""Matrix products of a layer's forward and backward pass: outputs, and gradients of inputs and of weights."""


class Options(BaseModel, extra="forbid"):
    """channels: input and output channels of the convolution. batches, outputs: of the last layer."""

    channels: tuple[PositiveInt, ...] = Field(min_length=2)
    batches: tuple[PositiveInt, ...] = Field(min_length=2)
    outputs: tuple[PositiveInt, ...] = Field(min_length=2)


@dataclass(frozen=True)
class Layer:
    """One layer of one size. power: exponent with which the work grows with the size. flops: of a forward and
    backward pass. build: creates a function that computes the pass."""

    varies: str
    size: int
    power: int
    flops: float
    num_images: int
    build: Callable[[], Callable[[], object]]


def run(request: Request) -> list[Table]:
    """Measure and return the tables. Raises ImagenetOptError."""
    options = checked_options(Options, request)
    subject = subject_of(request.overrides)
    subject.prepare()
    layers = {
        **{f"{CHANNELS}, {size}": convolution(subject, size) for size in options.channels},
        **{f"{BATCH}, {size}": last_layer(subject, BATCH, size) for size in options.batches},
        **{f"{OUTPUTS}, {size}": last_layer(subject, OUTPUTS, size) for size in options.outputs},
    }
    turns = {name: partial(seconds_of, layer, subject, request.seconds) for name, layer in layers.items()}
    rounds = run_rounds(turns, request, float, subject=asdict(subject))
    seconds_by_layer = [(layer, rounds.results[name]) for name, layer in layers.items() if name not in rounds.failures]
    table = table_of(seconds_by_layer, subject)
    return [replace(table, notes=(*rounds.reasons, *table.notes))]


def seconds_of(layer: Layer, subject: SyntheticStep, seconds: float) -> float:
    """Measure a forward and backward pass; the layer is in memory only meanwhile. Raises TurnFailed."""
    with what_torch_refuses():
        return seconds_per_call(layer.build(), seconds=seconds, settle=subject.settle)


def convolution(subject: SyntheticStep, channels: int) -> Layer:
    """A 3x3 convolution as in ResNet-50's third stage."""
    side = max(1, subject.image_size // _STRIDE)
    shape = (subject.num_images, channels, side, side)
    net = partial(nn.Conv2d, channels, channels, 3, padding=1, bias=False)
    flops = 2.0 * _PASSES * subject.num_images * side**2 * 9 * channels**2
    return Layer(CHANNELS, channels, 2, flops, subject.num_images, partial(_forward_backward, subject, net, shape))


def last_layer(subject: SyntheticStep, varies: str, size: int) -> Layer:
    """A matrix product of N x 2048 and 2048 x outputs."""
    num_images, outputs = (size, _CLASSES) if varies == BATCH else (subject.num_images, size)
    build = partial(_forward_backward, subject, partial(nn.Linear, _FEATURES, outputs), (num_images, _FEATURES))
    return Layer(varies, size, 1, 2.0 * _PASSES * num_images * _FEATURES * outputs, num_images, build)


def _forward_backward(
    subject: SyntheticStep, net: Callable[[], nn.Module], shape: tuple[int, ...]
) -> Callable[[], object]:
    """shape: of the inputs. On a GPU the pass is a CUDA graph, because launching one layer takes longer than
    computing it."""
    layer, inputs = subject.placed(net()), subject.random(*shape).requires_grad_()
    with torch.no_grad(), subject.autocast():
        gradient = torch.randn_like(layer(inputs))

    def call() -> None:
        with subject.autocast():
            outputs = layer(inputs)
        torch.autograd.grad(outputs, (inputs, *layer.parameters()), gradient)

    return call if subject.device.type != "cuda" else _captured(call)


def _captured(call: Callable[[], None]) -> Callable[[], None]:
    """Capture a CUDA graph, after a warm-up on a side stream as torch.cuda.graph requires."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def table_of(seconds_by_layer: list[tuple[Layer, list[float]]], subject: SyntheticStep) -> Table:
    """Build the table. seconds_by_layer: each layer with the seconds of its pass in each round."""
    rates_by_layer = {layer: [layer.flops / 1e9 / value for value in seconds] for layer, seconds in seconds_by_layer}
    groups = {varies: [layer for layer in rates_by_layer if layer.varies == varies] for varies in _VARIES}
    better = {layer: neighbour(layer.size, [other.size for other in groups[layer.varies]]) for layer in rates_by_layer}
    num_comparisons = sum(size is not None for size in better.values())
    shape = shape_of(map(median, rates_by_layer.values()))
    rows: list[tuple[Cell, ...]] = []
    plots: list[Plot] = []
    for varies, layers in groups.items():
        pairs = [(str(layer.size), str(better[layer])) for layer in layers if better[layer] is not None]
        values = {str(layer.size): rates_by_layer[layer] for layer in layers}
        ratios = measured_ratios(values, pairs, num_comparisons=num_comparisons)
        rows += [
            _row(layer, rates_by_layer[layer], better[layer], ratios.get(str(layer.size)), shape) for layer in layers
        ]
        if layers:
            points = {float(layer.size): rates_by_layer[layer] for layer in layers}
            curve = median_series(varies, dict(sorted(points.items())))
            plots.append(Plot(varies, "size", "GFLOP/s", "lines", (curve,)))
    title = f"Sizes and multiples: {subject.num_images} images of {subject.image_size} pixels, {subject.where}"
    finding, *notes = _notes(rows, subject)
    return Table(title, _columns(rows, shape), tuple(rows), tuple(notes), tuple(plots), finding=finding)


def _row(layer: Layer, rates: list[float], better: int | None, ratio: Ratio | None, shape: str) -> tuple[Cell, ...]:
    """A row of the table. rates: GFLOP/s of each round. better: the size to compare with. shape: format of rates."""
    multiple = multiple_of(layer.size)
    return (
        layer.varies,
        str(layer.size),
        str(multiple) if multiple > 1 else None,
        median(rates) * 1e9 / layer.flops * layer.num_images,
        *median_cells(rates, shape),
        None if better is None else str(better),
        *ratio_cells(ratio),
        padded_share(layer.size, 8, layer.power) if multiple == 1 else None,
    )


def _columns(rows: list[tuple[Cell, ...]], shape: str) -> tuple[Column, ...]:
    """Columns of the table. shape: format of GFLOP/s."""
    return (
        Column("what varies"),
        Column("size"),
        Column("multiple of"),
        Column("images/s", shape_of(row[3] for row in rows if isinstance(row[3], float))),
        Column("GFLOP/s", shape),
        Column("interval of GFLOP/s"),
        Column("compared with"),
        Column("a FLOP's speed against it", "{:.2f}"),
        Column("interval of that"),
        Column("verdict"),
        Column("if filled up to 8", "{:.2f}"),
    )


def _notes(rows: list[tuple[Cell, ...]], subject: SyntheticStep) -> tuple[str, ...]:
    slower = [f"{row[0]} {row[1]} ({row[7]:.2f})" for row in rows if row[2] is None and row[9] == "slower"]
    notes = (
        "Sizes that are not a multiple of 8 and whose FLOPs are slower than those of the nearest multiple: "
        f"{', '.join(slower) or 'none'}.",
        "If filled up to 8: the share of the speed that remains if the device computes the next multiple of 8 and "
        "discards the rest. A much smaller measured share means that the device uses another, slower algorithm.",
        RATIOS,
    )
    if subject.device.type == "cuda":
        return notes
    return (
        *notes,
        "This ran on the CPU. The multiples of 8 and 64 are those of a GPU's tensor cores; oneDNN, which computes on "
        "the CPU, has blocks of 8 or 16 channels.",
    )
