"""Study `streams`: speed of training several batches at the same time on CUDA streams of their own."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from imagenet_opt.display.table import Table
from imagenet_opt.study.kinds.comparison import Comparison, Setting, run_rounds
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep
from imagenet_opt.study.plan import Request, Sizes

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


def run(request: Request, num_batches: Sizes) -> Table:
    """num_batches: numbers of batches that are trained together; each number is a part of the table. Raises
    ImagenetOptError."""
    subject = SyntheticStep(request.overrides)
    settings = {
        f"{num} batches {way}": Setting(
            (str(num), way),
            partial(images_per_second, subject, num, way, request.seconds),
            against=base and f"{num} batches {base}",
        )
        for num in num_batches
        for way, base in _BASELINES.items()
        if subject.on_gpu or way != STREAMS
    }
    rounds = run_rounds(settings, request, float)
    comparison = Comparison(f"Several batches of {subject}", ("batches", "how"), "images/s", settings, rounds)
    note = "All rows train with a larger batch, which needs its own learning rate; an epoch has fewer steps."
    left_out = () if subject.on_gpu else ("Streams: they need a GPU.",)
    return comparison.table(note, left_out=left_out)


def images_per_second(subject: SyntheticStep, num_batches: int, way: str, seconds: float) -> float:
    """Of steps that train this many batches."""
    if subject.on_gpu:
        torch.cuda.empty_cache()
    step_seconds = subject.seconds(_step(subject, num_batches, way), seconds)
    return float(num_batches * subject.num_images / step_seconds)


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
