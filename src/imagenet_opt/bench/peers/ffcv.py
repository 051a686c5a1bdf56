"""FFCV: a file in its own format, decoded and resized by compiled threads."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from torch import Tensor

from imagenet_opt.bench.peers.torchvision import Files
from imagenet_opt.bench.turn import BenchJob

_FILE = "train.beton"


def loader(job: BenchJob) -> Iterable[Tensor]:
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage

    size = job.loading.image_size
    crop = RandomResizedCropRGBImageDecoder((size, size), scale=tuple(job.loading.crop_scale))
    batches = Loader(
        str(job.packed / _FILE),
        batch_size=job.loading.batch_size,
        num_workers=max(1, job.num_workers),
        order=OrderOption.RANDOM,
        os_cache=True,
        batches_ahead=job.prefetch_factor,
        seed=job.loading.seed,
        indices=np.tile(np.arange(len(job.index)), job.passes),
        drop_last=True,
        pipelines={
            "image": [crop, RandomHorizontalFlip(), ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor()],
        },
    )
    return (images for images, _ in batches)


def pack(job: BenchJob) -> None:
    """Write FFCV's file with its defaults, quality 90 and full size; with other values FFCV may store raw pixels."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from torchvision.datasets.folder import pil_loader

    files = Files(replace(job, passes=1), pil_loader)
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    DatasetWriter(str(job.packed / _FILE), fields, num_workers=max(1, job.num_workers)).from_indexed_dataset(files)
