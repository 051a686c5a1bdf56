"""Loss, tally and the check for NaN behind a captured network: as they are, and as one compiled function.

$KEEP/result.json gets milliseconds of a step in alternating windows, and of these parts alone on host and device.
"""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from imagenet_opt.model.loss import ClassificationMetrics, losses_of
from suites.gpu.augments import timed
from suites.gpu.ceiling import DEVICE, ON_GPU, captured, images_of, keep, milliseconds, mixed, network

NUM, WINDOWS = (128, 12) if ON_GPU else (2, 2)
Way = Callable[..., tuple[Tensor, Tensor, Tensor]]


TALLY = ClassificationMetrics(DEVICE)


def as_now(logits: Tensor, labels: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, the sums of a tally, and whether the loss is finite."""
    losses = losses_of(logits.float(), labels, loss="cross_entropy", smoothing=0.1)
    TALLY.add(losses.detach(), logits.detach(), labels, valid)
    return losses.mean(), TALLY.sums, losses.detach().isfinite().all()


def main() -> None:
    net, images = network(), images_of(NUM)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, nesterov=True, fused=ON_GPU)
    labels, valid = torch.randint(1000, (NUM,), device=DEVICE), torch.ones(NUM, dtype=torch.bool, device=DEVICE)
    drawn = torch.randn(NUM, 1000, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)

    def step(way: Way) -> None:
        with mixed():
            logits = net(images)
        way(logits, labels, valid)[0].backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if ON_GPU:
        net.compile(dynamic=False)
    step(as_now)
    graph = captured(net, images)
    ways: dict[str, Way] = {"now": as_now, "compiled": torch.compile(as_now, dynamic=False)}
    alone = {name: partial(backward, way, drawn, labels, valid) for name, way in ways.items()}
    found: dict[str, Any] = {f"{name}, alone": timed(call) for name, call in alone.items()}
    windows: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, WINDOWS):  # the first does not count
        for name in list(ways)[:: -1 if number % 2 else 1]:
            windows[name].append(round(milliseconds(partial(step, ways[name])), 4))
    ratios = sorted(now / compiled for now, compiled in zip(*(each[1:] for each in windows.values()), strict=True))
    found |= {"now over compiled": [ratios[0], median(ratios), ratios[-1]], "step, ms": windows}
    keep({"batch": NUM} | found)
    print(found["now over compiled"])
    if graph is not None:
        graph.release()


def backward(way: Way, *args: Tensor) -> None:
    way(*args)[0].backward()


if __name__ == "__main__":
    main()
