"""Sums of loss and hits that stay on the device until they are read."""

from collections.abc import Callable

import torch
from torch import Tensor

_TOP = (1, 5)


class ClassificationMetrics:
    """Weighted sums of loss, top-1 and top-5 hits and samples, as one float64 tensor (4,) on the device.

    float64, because 1.28 million small float32 summands would lose digits. Adding costs no host sync.
    """

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)
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

    def read(self, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> dict[str, Tensor]:
        """Means so far, on the host: loss, acc1, acc5 (shares, 0 to 1). NaN when nothing was added. One host sync.

        reduce: adds up the sums of all processes. acc5 is left out for five classes or fewer, where it is always 1.
        """
        sums = reduce(self.sums).cpu()
        loss, acc1, acc5 = sums[:3] / sums[3]
        means = {"loss": loss, "acc1": acc1}
        return means | {"acc5": acc5} if self._num_classes > max(_TOP) else means

    def reset(self) -> None:
        self.sums = torch.zeros_like(self.sums)
