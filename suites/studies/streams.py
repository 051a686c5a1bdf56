"""The speed of training several batches at the same time, each on its own CUDA stream.

python -m suites.studies.streams data.batch_size=64 --num_batches 2,4
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from imagenet_opt.study.comparison import ComparedSetting, Comparison
from suites.studies.command import arguments, measured, show
from suites.studies.synthetic_step import SyntheticStep

Loss = Callable[[], Tensor]
"""Mean loss of one batch, computed when called."""
ADDED = "one after the other, gradients added"
STREAMS = "on streams of their own, gradients added"
WHOLE = "as one batch"
_BASELINES = {ADDED: None, STREAMS: ADDED, WHOLE: ADDED}


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


def images_per_second(subject: SyntheticStep, num_batches: int, way: str, seconds: float) -> float:
    """Of steps that train this many batches."""
    if subject.on_gpu:
        torch.cuda.empty_cache()
    net = subject.net()
    optimizer, batches = subject.optimizer(net), [subject.batch() for _ in range(num_batches)]
    if way == WHOLE:
        batches = [tuple(map(torch.cat, zip(*batches, strict=True)))]
    losses = [partial(subject.loss, net, *batch) for batch in batches]
    streams, parameters = [torch.cuda.Stream(subject.device) for _ in losses if way == STREAMS], list(net.parameters())

    def step() -> None:
        if streams:
            backward_on_streams(losses, parameters, streams)
        else:
            backward_in_turn(losses)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return num_batches * subject.num_images / subject.seconds(step, seconds)


def main() -> None:
    given = arguments(__doc__, num_batches="2,4")
    subject = SyntheticStep(given.overrides)
    settings = {
        f"{num} batches {way}": ComparedSetting(
            (str(num), way),
            partial(images_per_second, subject, num, way, given.seconds),
            against=base and f"{num} batches {base}",
        )
        for num in given.num_batches
        for way, base in _BASELINES.items()
        if subject.on_gpu or way != STREAMS
    }
    rounds = measured(settings, given.repeats)
    comparison = Comparison(f"Several batches of {subject}", ("batches", "how"), "images/s", settings, rounds)
    note = "All rows train with a larger batch, which needs its own learning rate; an epoch has fewer steps."
    show(comparison.table(note, left_out=() if subject.on_gpu else ("Streams: they need a GPU.",)))


if __name__ == "__main__":
    main()
