"""Shared by several adapters: the transform of torchvision's v2, and the options of torch's DataLoader."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from imagenet_opt.bench.job import Job


def tensor_crops(job: Job) -> Callable[[Tensor], Tensor]:
    """uint8 (3, H, W) -> uint8 (3, size, size): a random resized crop, flipped or not."""
    from torchvision.transforms import v2

    size, scale = job.loading.image_size, job.loading.crop_scale
    crops: Callable[[Tensor], Tensor] = v2.Compose(
        [v2.RandomResizedCrop(size, scale=scale, antialias=True), v2.RandomHorizontalFlip()]
    )
    return crops


def decode(encoded: bytes) -> Tensor:
    """The decoded image, uint8 (3, H, W)."""
    from torchvision.io import ImageReadMode, decode_image

    pixels: Tensor = decode_image(torch.frombuffer(bytearray(encoded), dtype=torch.uint8), ImageReadMode.RGB)
    return pixels


def workers(job: Job) -> dict[str, Any]:
    """num_workers and prefetch_factor as DataLoader takes them."""
    return {"num_workers": job.num_workers, "prefetch_factor": job.prefetch_factor if job.num_workers else None}
