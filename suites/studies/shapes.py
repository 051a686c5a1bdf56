"""The cost of layer sizes that are not multiples of 8 or 64, which tensor cores prefer.

python -m suites.studies.shapes trainer.precision=bf16-mixed --channels 255,256,257
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from imagenet_opt.study.comparison import ComparedSetting, Comparison
from suites.studies.command import arguments, measured, show
from suites.studies.synthetic_step import SyntheticStep

CHANNELS, BATCH, OUTPUTS = "convolution: channels", "last layer: batch", "last layer: outputs"
_MULTIPLES = (64, 8)
_FEATURES, _CLASSES, _STRIDE = 2048, 1000, 16
"""Of ResNet-50: inputs and outputs of the last layer, and image size / size of the third stage's feature maps (arXiv
1512.03385, table 1)."""
_PASSES = 3
"""Matrix products of a layer's forward and backward pass: outputs, and gradients of inputs and of weights."""


def multiple_of(size: int) -> int:
    """64, 8, or 1 if the size is a multiple of neither."""
    return next((multiple for multiple in _MULTIPLES if size % multiple == 0), 1)


def neighbour(size: int, sizes: Sequence[int]) -> int | None:
    """The nearest of `sizes` with a larger `multiple_of`; the larger if two are equally near; None if there is none."""
    better = [other for other in sizes if multiple_of(other) > multiple_of(size)]
    return min(better, key=lambda other: (abs(other - size), -other), default=None)


def gflops_per_second(subject: SyntheticStep, varies: str, size: int, seconds: float) -> float:
    """Of a forward and backward pass; the layer is in memory only meanwhile."""
    layer, shape = layer_of(subject, varies, size)
    return flops_of(layer, shape) / 1e9 / subject.seconds(_forward_backward(subject, layer, shape), seconds)


def layer_of(subject: SyntheticStep, varies: str, size: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A layer and the shape of its inputs: a 3x3 convolution as in ResNet-50's third stage, or the last layer, a
    product of N x 2048 and 2048 x outputs."""
    if varies == CHANNELS:
        side = max(1, subject.image_size // _STRIDE)
        return nn.Conv2d(size, size, 3, padding=1, bias=False), (subject.num_images, size, side, side)
    num_images, outputs = (size, _CLASSES) if varies == BATCH else (subject.num_images, size)
    return nn.Linear(_FEATURES, outputs), (num_images, _FEATURES)


def flops_of(layer: nn.Module, shape: tuple[int, ...]) -> float:
    """FLOPs of a forward and backward pass. shape: of the inputs; a weight is used in each of its places."""
    num_places = math.prod(shape) / shape[1]
    return 2.0 * _PASSES * num_places * layer.weight.numel()  # type: ignore[operator]


def _forward_backward(subject: SyntheticStep, layer: nn.Module, shape: tuple[int, ...]) -> Callable[[], object]:
    """On a GPU the pass is a CUDA graph, because launching one layer takes longer than computing it."""
    layer, inputs = subject.placed(layer), subject.random(*shape).requires_grad_()
    with torch.no_grad(), subject.autocast():
        gradient = torch.randn_like(layer(inputs))

    def call() -> None:
        with subject.autocast():
            outputs = layer(inputs)
        torch.autograd.grad(outputs, (inputs, *layer.parameters()), gradient)

    if not subject.on_gpu:
        return call
    stream = torch.cuda.Stream()  # torch.cuda.graph requires a warm-up on a side stream
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def main() -> None:
    sizes = "248,252,255,256,257,260,264"
    given = arguments(__doc__, channels=sizes, batches=sizes, outputs="992,999,1000,1001,1008,1024")
    subject = SyntheticStep(given.overrides)
    settings = {
        f"{varies} {size}": ComparedSetting(
            (varies, str(size), str(multiple_of(size))),
            partial(gflops_per_second, subject, varies, size, given.seconds),
            against=f"{varies} {better}" if (better := neighbour(size, of_layer)) else None,
        )
        for varies, of_layer in {CHANNELS: given.channels, BATCH: given.batches, OUTPUTS: given.outputs}.items()
        for size in of_layer
    }
    title = f"Sizes and multiples: {subject.num_images} images of {subject.image_size} pixels, {subject.where}"
    rounds = measured(settings, given.repeats)
    comparison = Comparison(title, ("what varies", "size", "multiple of"), "GFLOP/s", settings, rounds)
    slower = [name for name, gain in comparison.gains.items() if gain.verdict == "slower"]
    note = "The multiples are those of a GPU's tensor cores; a CPU has blocks of 8 or 16 channels."
    start = "Sizes whose FLOPs are slower than those of the nearest better multiple"
    show(comparison.table(note, finding=f"{start}: {', '.join(slower) or 'none'}."))


if __name__ == "__main__":
    main()
