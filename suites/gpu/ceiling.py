"""Training steps of ResNet-50 on images that stay on the device, without Lightning: `ceiling.py BATCH VARIANT,...`.

Each variant is a new network, compiled and captured as a CUDA graph, which is timed in five windows of 20 steps. The
first variant is measured again at the end, which shows the drift. $KEEP/result.json gets the images per second of each
window, the seconds until ready, GiB, the number of kernels of a step and the ten longest.
"""

import argparse
import gc
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from imagenet_opt.model.cuda_graph import GraphedForward, capture_on_gpu
from imagenet_opt.model.network import build_network

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
SIDE, NUM_STEPS = (224, 20) if ON_GPU else (32, 1)
VARIANTS: dict[str, dict[str, Any]] = {
    "now": {},
    "fp16": {"dtype": torch.float16},
    "mm": {"options": {"conv_1x1_as_mm": True}},
    "combo": {"options": {"combo_kernels": True}},
    "pointwise": {"options": {"max_autotune_pointwise": True}},
    "linear": {"linear": True},
    "stem4": {"stem4": True},
    "autotune": {"mode": "max-autotune-no-cudagraphs"},
}


def settle() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


@contextmanager
def mixed(dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    with torch.autocast(DEVICE.type, dtype=dtype, cache_enabled=False):
        yield


def network() -> nn.Module:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")  # as in a run, whose compiled code is found then
    net = build_network("resnet50" if ON_GPU else "resnet10t", num_classes=1000)
    return net.to(DEVICE, memory_format=torch.channels_last)


def images_of(num: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(num, 3, SIDE, SIDE, device=DEVICE).to(dtype=dtype, memory_format=torch.channels_last)


def training_step(net: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """A step of SGD with momentum."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, nesterov=True, fused=ON_GPU)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=images.dtype is torch.float16)

    def step() -> None:
        with mixed(images.dtype):
            loss = cross_entropy(net(images).float(), labels, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def captured(net: nn.Module, images: Tensor) -> GraphedForward | None:
    if not ON_GPU:
        return None
    graph = GraphedForward(net, capture_on_gpu())
    with mixed(images.dtype):
        graph.capture(images)
    return graph


def milliseconds(call: Callable[[], object], num_calls: int = NUM_STEPS) -> tuple[float, float]:
    """Of one call: until the host has launched it, and until the device has finished it."""
    settle()
    began = time.perf_counter()
    for _ in range(num_calls):
        call()
    launched = time.perf_counter() - began
    settle()
    return 1e3 * launched / num_calls, 1e3 * (time.perf_counter() - began) / num_calls


def kernels_of(step: Callable[[], None]) -> dict[str, Any]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        settle()
    numbers, micros = Counter[str](), Counter[str]()
    for event in profile.events():
        if event.device_type.name == "CUDA":
            numbers[event.name[:70]] += 1
            micros[event.name[:70]] += round(event.time_range.elapsed_us())
    longest = {f"{name} x {numbers[name]}": us for name, us in micros.most_common(10)}
    return {"kernels": sum(numbers.values()), "longest_us": longest}


def keep(found: dict[str, Any]) -> None:
    Path(os.environ["KEEP"], "result.json").write_text(json.dumps(found, indent=1))


class Product(nn.Conv2d):
    """A 1x1 convolution as a matrix product, forward and backward."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.linear(images.permute(0, 2, 3, 1), self.weight[:, :, 0, 0]).permute(0, 3, 1, 2)


def with_fourth_channel(tensor: Tensor) -> Tensor:
    return nn.functional.pad(tensor, (0, 0, 0, 0, 0, 1)).contiguous(memory_format=torch.channels_last)


def measured(num: int, how: dict[str, Any]) -> dict[str, Any]:
    torch._dynamo.reset()  # else a network of the same class gets the code of the variant before
    began = time.perf_counter()
    net, images = network(), images_of(num, how.get("dtype", torch.bfloat16))
    if how.get("linear"):
        for layer in net.modules():
            if type(layer) is nn.Conv2d and layer.kernel_size == (1, 1) and layer.stride == (1, 1):
                layer.__class__ = Product
    if how.get("stem4"):  # as NVIDIA's entries of MLPerf do: a fourth channel of zeros
        stem = next(layer for layer in net.modules() if isinstance(layer, nn.Conv2d))
        stem.weight, stem.in_channels = nn.Parameter(with_fourth_channel(stem.weight.detach())), 4
        images = with_fourth_channel(images)
    step = training_step(net, images, torch.randint(1000, (num,), device=DEVICE))
    with inductor.patch(how.get("options", {})):
        if ON_GPU:
            net.compile(dynamic=False, mode=how.get("mode", "default"))
        step()
        graph = captured(net, images)
    step()
    settle()
    found: dict[str, Any] = {"ready_seconds": round(time.perf_counter() - began, 1)}
    found["images_per_second"] = [round(1e3 * num / milliseconds(step)[1], 1) for _ in range(5)]
    if ON_GPU:
        found["gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        found |= kernels_of(step)
    if graph is not None:
        graph.release()
    return found


def main(num: int, names: list[str]) -> None:
    found: dict[str, Any] = {}
    for name in [*names, f"{names[0]} again"]:
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
        try:
            found[name] = measured(num, VARIANTS[name.removesuffix(" again")])
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"[:400]}
        keep({"batch": num} | found)
        print(name, json.dumps(found[name]), flush=True)
        gc.collect()
        if ON_GPU:
            torch.cuda.empty_cache()
    if any("error" in one for one in found.values()):
        raise SystemExit("a variant failed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batch", type=int)
    parser.add_argument("variants", help=f"of {', '.join(VARIANTS)}")
    given = parser.parse_args()
    main(given.batch if ON_GPU else 2, given.variants.split(","))
