"""A batch on its way from a worker to the device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from imagenet_opt.data.keys import BatchKey


@dataclass
class Batch:
    """Samples of one key.

    images: uint8 (N, 3, size, size) from a worker; float, normalised, once on the device.
    labels: int64 (N,), or float (N, num_classes) once mixed. indices: int64 (N,), places in the index.
    valid: bool (N,), False for padding.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    valid: Tensor
    key: BatchKey

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory; the DataLoader calls this by name."""
        return self._each(Tensor.pin_memory)

    def to(self, device: torch.device | str, *args: Any, non_blocking: bool = False, **kwargs: Any) -> "Batch":
        """The same batch on `device`."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory until what `stream` has been given so far is done."""
        for tensor in (self.images, self.labels, self.indices, self.valid):
            tensor.record_stream(stream)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(change(self.images), change(self.labels), change(self.indices), change(self.valid), self.key)
