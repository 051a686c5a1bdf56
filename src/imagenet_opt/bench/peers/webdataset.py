"""WebDataset: the same JPEGs in tar files, read one after the other and shuffled in a buffer."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from imagenet_opt.bench.peers.torchvision import decode, tensor_crops, workers
from imagenet_opt.bench.turn import BenchJob

_SHARDS = 64
"""Number of tar files, or one for each worker if there are more workers; fewer for a very small data set."""
_BUFFER = 1000
"""Samples in the shuffle buffer; the number of WebDataset's documentation."""


def loader(job: BenchJob) -> Iterable[Tensor]:
    import webdataset as wds

    crops = tensor_crops(job)
    shards = sorted(str(path) for path in job.packed.glob("*.tar"))
    batches = (
        wds.WebDataset(shards, shardshuffle=len(shards), seed=job.loading.seed)
        .repeat()
        .shuffle(_BUFFER)
        .map(lambda sample: crops(decode(sample["jpg"])))
        .batched(job.loading.batch_size, partial=False, collation_fn=torch.stack)
    )
    loaded: Iterable[Tensor] = wds.WebLoader(batches, batch_size=None, **workers(job))
    return loaded


def pack(job: BenchJob) -> None:
    import webdataset as wds

    samples = job.samples()[: len(job.index)]
    a_shard = -(-len(samples) // max(_SHARDS, job.num_workers))
    with wds.ShardWriter(str(job.packed / "%06d.tar"), maxcount=a_shard, verbose=0) as tar:
        for i, (path, label) in enumerate(samples):
            tar.write({"__key__": f"{i:08d}", "jpg": Path(path).read_bytes(), "cls": label})
