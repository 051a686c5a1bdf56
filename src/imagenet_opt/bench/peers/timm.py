"""timm's loader as in the workers of --use-prefetcher, without the later step on the GPU."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from imagenet_opt.bench.peers.torchvision import Files
from imagenet_opt.bench.turn import BenchJob


def loader(job: BenchJob) -> Iterable[Tensor]:
    from timm.data.loader import create_loader, fast_collate
    from timm.data.transforms_factory import create_transform
    from torchvision.datasets.folder import pil_loader

    crops: dict[str, Any] = {"scale": job.loading.crop_scale, "color_jitter": None, "interpolation": "bilinear"}
    files: Any = Files(job, pil_loader)
    size = (3, job.loading.image_size, job.loading.image_size)
    batches = create_loader(
        files,
        size,
        job.loading.batch_size,
        num_workers=job.num_workers,
        use_prefetcher=False,
        persistent_workers=job.num_workers > 0,
        collate_fn=fast_collate,
        is_training=True,
        **crops,
    )
    batches.prefetch_factor = job.prefetch_factor if job.num_workers else None  # create_loader has no such argument
    # uint8, as under its prefetcher
    files.transform = create_transform(size, normalize=False, is_training=True, **crops)
    return (images for images, _ in batches)
