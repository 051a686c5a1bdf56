"""Training losses per image: cross-entropy, and binary cross-entropy of each class against all others."""

import math

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from imagenet_opt.errors import ConfigError


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
