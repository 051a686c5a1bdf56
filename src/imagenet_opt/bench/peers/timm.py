"""timm's loader as in the workers of --use-prefetcher, without the later step on the GPU."""

import time
from collections.abc import Iterable
from typing import IO, Any

from torch import Tensor

from imagenet_opt.bench.job import Job


def loader(job: Job) -> Iterable[Tensor]:
    from timm.data.dataset import ImageDataset
    from timm.data.loader import create_loader, fast_collate
    from timm.data.transforms_factory import create_transform

    crops: dict[str, Any] = {"scale": job.loading.crop_scale, "color_jitter": None, "interpolation": "bilinear"}
    files = ImageDataset("", reader=_reader(job))
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
    files.transform = create_transform(
        size, normalize=False, is_training=True, **crops
    )  # uint8, as under its prefetcher
    return (images for images, _ in batches)


def _reader(job: Job) -> Any:
    from timm.data.readers.reader import Reader

    class Files(Reader):
        """Gives an open file and a label, as timm's ReaderImageFolder does."""

        def __init__(self) -> None:
            self.samples = job.samples()

        def __getitem__(self, index: int) -> tuple[IO[bytes], int]:
            path, label = self.samples[index]
            if job.loading.added_latency_ms:
                time.sleep(job.loading.added_latency_ms / 1000)
            return open(path, "rb"), label

        def __len__(self) -> int:
            return len(self.samples)

        def _filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
            return self.samples[index][0]

    return Files()
