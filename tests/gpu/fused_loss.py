"""Loss, tally and the check for NaN, eager and as one compiled function, behind the captured network.

$KEEP/result.json gets milliseconds of a training step at batch 128 of each, in alternating windows, and of these parts
alone on the host and on the device.
"""

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from imagenet_opt.model.classification_metrics import ClassificationMetrics
from imagenet_opt.model.loss import losses_of
from tests.gpu.ceiling import DEVICE, ON_GPU, captured, images_of, milliseconds, mixed, network, settle

NUM, WINDOWS = (128, 12) if ON_GPU else (2, 2)


def tail(logits: Tensor, labels: Tensor, valid: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss to differentiate, the new sums of a tally, and whether the loss is finite."""
    losses = losses_of(logits.float(), labels, loss="cross_entropy", smoothing=0.1)
    tally = ClassificationMetrics(DEVICE)
    tally.add(losses.detach(), logits.detach(), labels, valid)
    return losses.mean(), sums + tally.sums, losses.detach().isfinite().all()


def main() -> None:
    net, images = network(), images_of(NUM)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, nesterov=True, fused=ON_GPU)
    labels, valid = torch.randint(1000, (NUM,), device=DEVICE), torch.ones(NUM, dtype=torch.bool, device=DEVICE)
    sums = torch.zeros(4, dtype=torch.float64, device=DEVICE)
    if ON_GPU:
        net.compile(dynamic=False)

    def step(of_logits: Callable[..., Any]) -> None:
        with mixed():
            logits = net(images)
        of_logits(logits, labels, valid, sums)[0].backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step(tail)
    graph = captured(net, images)
    ways: dict[str, Callable[..., Any]] = {"eager": tail, "compiled": torch.compile(tail, dynamic=False)}
    logits = torch.randn(NUM, 1000, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    found: dict[str, Any] = {"batch": NUM}
    for name, way in ways.items():
        alone = partial(_backward, way, logits, labels, valid, sums)
        for _ in range(3):
            step(way)
            alone()
        found[name] = {"alone_ms": milliseconds(alone), "alone_host_ms": _host_milliseconds(alone), "step_ms": []}
    for number in range(WINDOWS):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            found[name]["step_ms"].append(round(milliseconds(partial(step, ways[name])), 4))
    eager, compiled = (found[name]["step_ms"] for name in ways)
    ratios = sorted(one / other for one, other in zip(eager, compiled, strict=True))
    found["eager over compiled"] = {"median": median(ratios), "least": ratios[0], "most": ratios[-1]}
    (Path(os.environ["KEEP"]) / "result.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found["eager over compiled"]))
    if graph is not None:
        graph.release()


def _backward(way: Callable[..., Any], *args: Tensor) -> None:
    way(*args)[0].backward()


def _host_milliseconds(call: Callable[[], None], num_calls: int = 10) -> float:
    settle()
    began = time.perf_counter()
    for _ in range(num_calls):
        call()
    return 1e3 * (time.perf_counter() - began) / num_calls


if __name__ == "__main__":
    main()
