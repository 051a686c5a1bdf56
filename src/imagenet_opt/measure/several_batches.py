"""Several batches, one after the other or at the same time, on one CUDA stream or each on a stream of its own."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Loss = Callable[[], Tensor]
"""Mean loss of one batch, computed when called."""


def backward_in_turn(losses: Sequence[Loss]) -> None:
    """Leave the gradients of the mean of all in `grad`, as accumulation does."""
    for loss in losses:
        (loss() / len(losses)).backward()


def backward_on_streams(
    losses: Sequence[Loss], parameters: Sequence[nn.Parameter], streams: Sequence[torch.cuda.Stream]
) -> None:
    """The same, each batch on a stream of its own.

    Each has gradients of its own, as sums into the same memory from several streams at a time would be wrong. Buffers
    are shared: batch norm's running statistics, which training does not read, are those of any order.
    """
    main = torch.cuda.current_stream()
    found: list[tuple[Tensor, ...]] = []
    for loss, stream in zip(losses, streams, strict=True):
        stream.wait_stream(main)  # for the weights, and for memory that was used there
        with torch.cuda.stream(stream):
            found.append(torch.autograd.grad(loss() / len(losses), parameters))
    for stream in streams:
        main.wait_stream(stream)
    total = list(found[0])
    for gradients in found[1:]:
        torch._foreach_add_(total, list(gradients))
    for parameter, gradient in zip(parameters, total, strict=True):
        parameter.grad = gradient


def in_turn_on_streams(steps: Sequence[Callable[[], object]], streams: Sequence[torch.cuda.Stream]) -> None:
    """Each on a stream of its own that waits for the step before, as it begins with the weights that one leaves."""
    before = main = torch.cuda.current_stream()
    for step, stream in zip(steps, streams, strict=True):
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            step()
        before = stream
    main.wait_stream(before)
