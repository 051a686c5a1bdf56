"""The Triton kernel on a real GPU: thousands of crops against torchvision, and no wait for the device."""

import torch

from imagenet_opt import ops
from tests.data.transforms.test_resize import check, crops


def test_thousands_of_crops_are_torchvisions() -> None:
    for size, most, num in (((8, 8), 40, 2000), ((64, 64), 200, 1000), ((224, 224), 600, 100), ((33, 50), 500, 200)):
        sources, ragged = crops(num, most, seed=size[0])
        on_device = ragged.to("cuda")
        for interpolation in ("bilinear", "bicubic", "area"):
            images = ops.resize(on_device, size, interpolation=interpolation)
            assert images.is_contiguous(memory_format=torch.channels_last)
            check(images.cpu(), sources, size, interpolation)
            half = ops.resize(on_device, size, interpolation=interpolation, dtype=torch.bfloat16)
            assert (half.float() - images).abs().max() < 0.02


def test_the_host_does_not_wait_for_it() -> None:
    _, ragged = crops(64, 100, seed=0)
    on_device = ragged.to("cuda")
    ops.resize(on_device, 64, dtype=torch.bfloat16)  # compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        ops.resize(on_device, 64, dtype=torch.bfloat16)
    finally:
        torch.cuda.set_sync_debug_mode("default")
