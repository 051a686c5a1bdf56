"""Sums of loss and hits that stay on the device until they are read."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_TOP = (1, 5)
_MOST_LATE = 4
Means = dict[str, float]
Reduce = Callable[[Tensor], Tensor]
"""Adds up the sums of all processes."""


class ClassificationMetrics:
    """Weighted sums of loss, top-1 and top-5 hits and samples, as one float64 tensor (4,) on the device.

    float64, because 1.28 million small float32 summands would lose digits. Adding costs no host sync.
    Means: loss, acc1, acc5 (shares, 0 to 1); NaN when nothing was added. acc5 is left out for five classes or fewer,
    where it is always 1.
    """

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)
        self._copies = torch.empty(_MOST_LATE, 4, dtype=torch.float64, pin_memory=device.type == "cuda")
        self._arrays, self._num_copies = self._copies.numpy(), 0
        self._num_classes = 0

    def add(self, losses: Tensor, logits: Tensor, labels: Tensor, valid: Tensor) -> None:
        """losses: (N,); logits: (N, C); labels: int64 (N,) or soft (N, C); valid: bool (N,), False is not counted."""
        if labels.ndim == 2:
            labels = labels.argmax(dim=1)
        self._num_classes = logits.shape[1]
        best = logits.topk(min(max(_TOP), logits.shape[1]), dim=1).indices
        hits = best == labels[:, None]
        rows = [losses, *(hits[:, :k].any(dim=1) for k in _TOP), torch.ones_like(losses)]
        self.sums += (torch.stack([row.double() for row in rows]) * valid).sum(dim=1)

    def read(self, reduce: Reduce = lambda sums: sums) -> Means:
        """The means so far. One host sync."""
        return self._means(reduce(self.sums).cpu().numpy())

    def read_late(self, reduce: Reduce) -> Callable[[], Means]:
        """Queue a copy of the sums to the host. Returns a function that gives the means so far; call the function when
        the device has finished the copy, and before the fourth further copy. No host sync."""
        place = self._num_copies % _MOST_LATE
        self._num_copies += 1
        self._copies[place].copy_(reduce(self.sums), non_blocking=True)
        return lambda: self._means(self._arrays[place])

    def _means(self, sums: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Means:
        with np.errstate(invalid="ignore"):
            loss, acc1, acc5 = (sums[:3] / sums[3]).tolist()
        means = {"loss": loss, "acc1": acc1}
        return means | {"acc5": acc5} if self._num_classes > max(_TOP) else means

    def reset(self) -> None:
        self.sums = torch.zeros_like(self.sums)
