"""Losses per image: cross-entropy, and binary cross-entropy of each class against all others; and their sums with those
of hits, on the device."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from imagenet_opt.errors import ConfigError

_TOP = (1, 5)
_MOST_LATE = 4
Reduce = Callable[[Tensor], Tensor]
"""Adds up the sums of all processes."""


def check_loss(loss: str, smoothing: float, target_threshold: float | None) -> None:
    """Raise ConfigError for values out of range."""
    if not 0 <= smoothing < 1:
        raise ConfigError(f"model.label_smoothing={smoothing} must be at least 0 and below 1")
    if target_threshold is not None and (loss == "cross_entropy" or not 0 <= target_threshold < 1):
        raise ConfigError(
            f"model.target_threshold={target_threshold} must be at least 0 and below 1, with model.loss=bce_mean or "
            "bce_sum; null leaves the targets as they are"
        )


def losses_of(
    logits: Tensor, labels: Tensor, *, loss: str, smoothing: float, target_threshold: float | None = None
) -> Tensor:
    """Losses (N,). logits: (N, C). labels: int64 (N,), or soft targets (N, C) of mixed images.

    bce_mean: binary cross-entropy, mean over the classes (timm). bce_sum: sum over the classes (Composer), with C times
    the gradients. target_threshold: smoothed and mixed targets above it become 1, the others 0.
    Sources: timm.loss.BinaryCrossEntropy; composer.loss.binary_cross_entropy_with_logits.
    """
    if loss == "cross_entropy":
        return cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    num_classes = logits.shape[1]
    targets = one_hot(labels, num_classes).to(logits.dtype) if labels.ndim == 1 else labels
    targets = targets * (1 - smoothing) + smoothing / num_classes
    if target_threshold is not None:
        targets = (targets > target_threshold).to(logits.dtype)
    losses = binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return losses.mean(1) if loss == "bce_mean" else losses.sum(1)


def start_bias(head: nn.Module, num_classes: int) -> None:
    """Set the head's bias to -log(C), so that bce_sum starts with the loss of equally probable classes."""
    if isinstance(head, nn.Linear) and head.bias is not None:
        nn.init.constant_(head.bias, -math.log(num_classes))


def mean_names(num_classes: int) -> tuple[str, ...]:
    """Names of the means of `ClassificationMetrics`, without acc5 for five classes or fewer, where it is always 1."""
    return ("loss", "acc1", "acc5")[: 3 if num_classes > max(_TOP) else 2]


class ClassificationMetrics:
    """Weighted sums of loss, top-1 and top-5 hits and samples, as one float64 tensor (4,) on the device.

    float64, because 1.28 million small float32 summands would lose digits. Adding costs no host sync.
    Means: those of `mean_names`, shares from 0 to 1 but the loss; NaN when nothing was added.
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

    def read(self, reduce: Reduce = lambda sums: sums) -> dict[str, float]:
        """The means so far. One host sync."""
        return self._means(reduce(self.sums).cpu().numpy())

    def read_late(self, reduce: Reduce) -> Callable[[], dict[str, float]]:
        """Queue a copy of the sums to the host. Returns a function that gives the means so far; call the function when
        the device has finished the copy, and before the fourth further copy. No host sync."""
        place = self._num_copies % _MOST_LATE
        self._num_copies += 1
        self._copies[place].copy_(reduce(self.sums), non_blocking=True)
        return lambda: self._means(self._arrays[place])

    def _means(self, sums: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> dict[str, float]:
        with np.errstate(invalid="ignore"):
            means = (sums[:-1] / sums[-1]).tolist()
        return dict(zip(mean_names(self._num_classes), means, strict=False))

    def reset(self) -> None:
        self.sums = torch.zeros_like(self.sums)
