"""LitData: the same JPEGs in its chunks."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from imagenet_opt.bench.peers.torchvision import tensor_crops, workers
from imagenet_opt.bench.turn import BenchJob


def loader(job: BenchJob) -> Iterable[Tensor]:
    from litdata import ParallelStreamingDataset, StreamingDataLoader, StreamingDataset

    crops = tensor_crops(job)

    def crop(samples: Any) -> tuple[Tensor, int]:
        ((pixels, label),) = samples
        return crops(pixels), label

    chunks = StreamingDataset(str(job.packed), shuffle=True, seed=job.loading.seed)
    endless = ParallelStreamingDataset([chunks], length=float("inf"), transform=crop)
    batches = StreamingDataLoader(endless, batch_size=job.loading.batch_size, drop_last=True, **workers(job))
    return (images for images, _ in batches)


def pack(job: BenchJob) -> None:
    from litdata import optimize

    inputs = job.samples()[: len(job.index)]
    optimize(_sample, inputs, str(job.packed), chunk_bytes="64MB", num_workers=max(1, job.num_workers), verbose=False)


def _sample(path_and_label: tuple[str, int]) -> tuple[Any, int]:
    from PIL import Image

    path, label = path_and_label
    return Image.open(path), label  # a JPEG's bytes are kept as they are
