"""torchvision with torch's DataLoader: the usual code with Pillow, and faster code with tensors, which other adapters
use too."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from imagenet_opt.bench.turn import BenchJob


class Files(Dataset[tuple[Any, int]]):
    """The job's files as ImageFolder has them: a list of (path, label), a loader, a transform."""

    def __init__(
        self, job: BenchJob, load: Callable[[str], Any], transform: Callable[[Any], Any] = lambda it: it
    ) -> None:
        self.samples = job.samples()
        self.load = load
        self.transform = transform
        self.latency_seconds = job.loading.added_latency_ms / 1000

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.samples[index]
        if self.latency_seconds:
            time.sleep(self.latency_seconds)
        return self.transform(self.load(path)), label

    def __len__(self) -> int:
        return len(self.samples)


def pillow(job: BenchJob) -> Iterable[Tensor]:
    from torchvision import transforms
    from torchvision.datasets.folder import default_loader

    crop = transforms.RandomResizedCrop(job.loading.image_size, scale=job.loading.crop_scale)
    steps = [crop, transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return _batches(job, Files(job, default_loader, transforms.Compose(steps)))


def tensors(job: BenchJob) -> Iterable[Tensor]:
    from torchvision.io import ImageReadMode, decode_image

    return _batches(job, Files(job, lambda path: decode_image(path, ImageReadMode.RGB), tensor_crops(job)))


def _batches(job: BenchJob, files: Files) -> Iterable[Tensor]:
    batches = DataLoader(files, job.loading.batch_size, shuffle=True, drop_last=True, **workers(job))
    return (images for images, _ in batches)


def tensor_crops(job: BenchJob) -> Callable[[Tensor], Tensor]:
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


def workers(job: BenchJob) -> dict[str, Any]:
    """num_workers and prefetch_factor as DataLoader takes them."""
    return {"num_workers": job.num_workers, "prefetch_factor": job.prefetch_factor if job.num_workers else None}
