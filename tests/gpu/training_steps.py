"""Training steps of ResNet-50 on images that stay on the device, without Lightning: a probe of first.py."""

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from imagenet_opt.model.cuda_graph import GraphedForward, capture_on_gpu
from imagenet_opt.model.network import build_network
from imagenet_opt.probe.device_peak import timed

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
NUM_CALLS = 20 if ON_GPU else 1

Found = dict[str, Any]


def settle() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def milliseconds(call: Callable[[], object]) -> float:
    """Mean of several calls, after three that count for nothing."""
    for _ in range(3 if ON_GPU else 1):
        call()
    return 1e3 * timed(call, num_calls=NUM_CALLS, settle=settle)


def network() -> nn.Module:
    torch.manual_seed(0)
    name = "resnet50" if ON_GPU else "resnet10t"
    return build_network(name, num_classes=1000).to(DEVICE, memory_format=torch.channels_last)


def images_of(num: int, side: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    drawn = torch.randn(num, 3, side, side, device=DEVICE)
    return drawn.to(dtype=dtype, memory_format=torch.channels_last)


@contextmanager
def mixed(dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    with torch.autocast(DEVICE.type, dtype=dtype, cache_enabled=False):
        yield


def _training_step(net: nn.Module, num_images: int, dtype: torch.dtype) -> tuple[Callable[[], None], Tensor]:
    """One step of SGD with momentum, and its images."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, nesterov=True, fused=ON_GPU)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=dtype is torch.float16)
    images = images_of(num_images, 224 if ON_GPU else 32, dtype)
    labels = torch.randint(1000, (num_images,), device=DEVICE)

    def step() -> None:
        with mixed(dtype):
            loss = cross_entropy(net(images).float(), labels, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step, images


def _steps_ahead(step: Callable[[], None]) -> int:
    """How many steps the host is ahead of the device where nobody waits, at most."""
    ends: list[torch.cuda.Event] = []
    most = 0
    for _ in range(40):
        step()
        ends.append(torch.cuda.Event())
        ends[-1].record()
        most = max(most, sum(not end.query() for end in ends))
    settle()
    return most


def _measured_steps(num_images: int, dtype: torch.dtype, *, compiled: bool, graphed: bool) -> Found:
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    net = network()
    step, images = _training_step(net, num_images, dtype)
    graph = None
    began = time.perf_counter()
    if compiled and ON_GPU:
        net.compile(dynamic=False)
        step()
    if graphed and ON_GPU:
        graph = GraphedForward(net, capture_on_gpu())
        with mixed(dtype):
            graph.capture(images)
    step()
    settle()
    found: Found = {"ready_seconds": time.perf_counter() - began}
    found["images_per_second"] = 1e3 * num_images / milliseconds(step)
    if ON_GPU:
        found["steps_ahead"] = _steps_ahead(step)
        found["gib"] = torch.cuda.max_memory_reserved() / 2**30
    if graph is not None:
        graph.release()
    return found


def steps(num_images: int) -> Found:
    """Training steps of ResNet-50 on images that stay on the device, one row after the other; a row may fail alone."""
    num_images = num_images if ON_GPU else 2
    torch.backends.cudnn.benchmark = True
    half = torch.float16 if ON_GPU else torch.bfloat16
    rows = {
        "eager, bfloat16": (torch.bfloat16, False, False),
        "eager, float16": (half, False, False),
        "compiled": (torch.bfloat16, True, False),
        "compiled, CUDA graph": (torch.bfloat16, True, True),
    }
    found: Found = {}
    for name, (dtype, compiled, graphed) in rows.items():
        try:
            found[name] = _measured_steps(num_images, dtype, compiled=compiled, graphed=graphed)
        except (Exception, KeyboardInterrupt) as error:  # run.sh interrupts what takes too long
            found[name] = {"error": f"{type(error).__name__}: {error}"}
        gc.collect()
        print(name, json.dumps(found[name]), flush=True)
    return found
