"""SPDL's pipeline: threads of one process that read, decode and crop with torchvision. Its own decoder, spdl.io, needs
a system's FFmpeg. A separate stage for reading, which SPDL's guide recommends for slow storage, was slower on a local
disk."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from imagenet_opt.bench.peers.torchvision import decode, tensor_crops
from imagenet_opt.bench.turn import BenchJob


def loader(job: BenchJob) -> Iterable[Tensor]:
    from spdl.pipeline import PipelineBuilder

    torch.set_num_threads(1)
    crops, samples = tensor_crops(job), job.samples()
    threads = max(1, job.num_workers)

    def paths() -> Iterator[str]:
        for i in torch.randperm(len(samples)).tolist():
            yield samples[i][0]

    def load(path: str) -> Tensor:
        with open(path, "rb") as file:
            return crops(decode(file.read()))

    pipeline = (
        PipelineBuilder()
        .add_source(paths())
        .pipe(load, concurrency=threads)
        .aggregate(job.loading.batch_size, drop_last=True)
        .pipe(torch.stack)
        .add_sink(max(1, job.prefetch_factor))
        .build(num_threads=threads)
    )
    pipeline.start()
    batches: Iterable[Tensor] = pipeline
    return batches
