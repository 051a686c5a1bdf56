"""FFCV: a file in its own format, decoded and resized by compiled threads."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from torch import Tensor

from imagenet_opt.bench.job import Job

_FILE = "train.beton"


def loader(job: Job) -> Iterable[Tensor]:
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
        indices=np.tile(np.arange(job.num_files), job.passes),
        drop_last=True,
        pipelines={
            "image": [crop, RandomHorizontalFlip(), ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor()],
        },
    )
    return (images for images, _ in batches)


def pack(job: Job, folder: Path) -> None:
    """Write FFCV's file with its defaults, quality 90 and full size; with other values FFCV may store raw pixels."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from PIL import Image

    class Files:
        def __init__(self) -> None:
            self.samples = job.samples()

        def __getitem__(self, index: int) -> tuple[Image.Image, int]:
            path, label = self.samples[index]
            return Image.open(path).convert("RGB"), label

        def __len__(self) -> int:
            return job.num_files

    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    DatasetWriter(str(folder / _FILE), fields, num_workers=max(1, job.num_workers)).from_indexed_dataset(Files())
