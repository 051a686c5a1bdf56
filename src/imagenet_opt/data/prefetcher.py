"""Batches on the device, copied while the device still computes."""

from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader

from imagenet_opt.data.batch import Batch
from imagenet_opt.data.keys import BatchKeys


class DevicePrefetcher:
    """Wraps a loader of pinned batches: copy on a side stream, then `transform` on the stream that computes.

    The host queues a step's kernels faster than the device runs them, so the copy of the next batch overlaps
    the present step. On a CPU it only applies `transform`.

    Its length is the whole epoch's, also when the epoch goes on in its middle.
    """

    def __init__(
        self,
        loader: "DataLoader[Batch]",
        keys: BatchKeys,
        *,
        device: torch.device,
        transform: Callable[[Batch], Batch],
    ) -> None:
        self.loader = loader
        self.sampler = keys  # Lightning looks here for set_epoch,
        self.batch_sampler = None  # and here when there is a sampler
        self.device = device
        self.transform = transform
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            yield self.transform(self._send(batch))

    def _send(self, batch: Batch) -> Batch:
        if self._stream is None:
            return batch
        with torch.cuda.stream(self._stream):
            sent = batch.to(self.device, non_blocking=True)
        computing = torch.cuda.current_stream(self.device)
        computing.wait_stream(self._stream)
        sent.record_stream(computing)
        return sent
