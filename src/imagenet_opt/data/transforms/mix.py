"""Mixup and CutMix for whole batches on the device, with soft targets.

Sources: mixup, arXiv 1710.09412; CutMix, arXiv 1905.04899. Each image is mixed with its mirror: the image at the same
place of the reversed batch. The order of a batch is random already, so no permutation is drawn.
"""

import numpy as np
import torch
from torch import Tensor


def mixup(images_NCHW: Tensor, share: float) -> Tensor:
    """share x image + (1 - share) x mirror. images_NCHW: float; share in [0, 1]."""
    return torch.lerp(images_NCHW.flip(0), images_NCHW, share)


def cutmix(images_NCHW: Tensor, share: float, center: tuple[float, float]) -> tuple[Tensor, float]:
    """Paste a box of about (1 - share) of the mirror's area around `center` (y, x as shares of the size).

    Returns the mixed images, and the share of each image that is left after clipping the box at the border.
    """
    height, width = images_NCHW.shape[-2:]
    half = np.sqrt(1 - share) / 2
    top, bottom = _span(height, center[0], half)
    left, right = _span(width, center[1], half)
    mixed = images_NCHW.clone()
    mixed[..., top:bottom, left:right] = images_NCHW.flip(0)[..., top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def mix_labels(labels: Tensor, share: float, num_classes: int) -> Tensor:
    """Soft targets, float32 (N, num_classes), of images mixed with their mirrors. labels: int64 (N,)."""
    hot = torch.zeros(len(labels), num_classes, device=labels.device).scatter_(1, labels[:, None], 1.0)
    return torch.lerp(hot.flip(0), hot, share)


def _span(size: int, center: float, half: float) -> tuple[int, int]:
    low, high = np.clip([size * (center - half), size * (center + half)], 0, size).round().astype(int)
    return int(low), int(high)
