"""Mixup and CutMix of each batch on the device, with soft targets.

Sources: mixup, arXiv 1710.09412; CutMix, arXiv 1905.04899. Each image is mixed with its mirror: the image at the same
place of the reversed batch. The order of a batch is random already, so no permutation is drawn.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from imagenet_opt.config.length import epochs_of
from imagenet_opt.data.batch import need_images, set_images
from imagenet_opt.data.randomness import key_of
from imagenet_opt.errors import ConfigError


class Mixing(Callback):
    """Mixes each training batch in place: each image with the image at the mirrored position, and labels into soft
    targets.

    The batch is a list `[images, labels]`, or a dict or an object with these names. The loss must accept soft targets,
    as torch's cross-entropy does. The random draws depend only on (seed, epoch, batch, rank).

    mode: "on" or "off". mixup_alpha, cutmix_alpha: parameters of the Beta distribution; 0 turns that method off; if
    both are on, each mixes half of the batches. last_epochs_off: number of epochs at the end of the run without mixing.

    Logs nothing.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        mode: Literal["on", "off"] | bool = "off",
        seed: int = 0,
        mixup_alpha: float = 0.2,
        cutmix_alpha: float = 1.0,
        last_epochs_off: int = 0,
    ) -> None:
        if isinstance(mode, bool):  # YAML reads on and off as booleans
            mode = "on" if mode else "off"
        if mode not in ("on", "off"):
            raise ConfigError(f"callbacks.mixing.mode={mode!r} must be on (every batch is mixed) or off (plain images)")
        if min(mixup_alpha, cutmix_alpha) < 0:
            raise ConfigError("callbacks.mixing.mixup_alpha and cutmix_alpha must be at least 0")
        if mode == "on" and not mixup_alpha and not cutmix_alpha:
            raise ConfigError(
                "callbacks.mixing.mode=on mixes nothing with mixup_alpha=0 and cutmix_alpha=0; raise one of them, or "
                "set callbacks.mixing.mode=off"
            )
        self.mode, self.num_classes, self.seed = mode, num_classes, seed
        self.mixup_alpha, self.cutmix_alpha = mixup_alpha, cutmix_alpha
        self.last_epochs_off = last_epochs_off

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.mode == "on" and 0 < epochs_of(trainer) <= self.last_epochs_off:
            raise ConfigError(
                f"callbacks.mixing.last_epochs_off={self.last_epochs_off} leaves no epoch to mix of the run's "
                f"{epochs_of(trainer)}; lower it, or set callbacks.mixing.mode=off"
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._active(trainer):
            return
        place = (trainer.current_epoch, batch_idx, trainer.global_rank)
        generator = np.random.Generator(np.random.Philox(key_of(self.seed, *place)))
        images = need_images(batch, "set callbacks.mixing.mode=off")
        labels = batch["labels"] if isinstance(batch, dict) else batch[1] if isinstance(batch, list) else batch.labels
        set_images(batch, *self._mix(images, labels, generator))

    def _active(self, trainer: Trainer) -> bool:
        if self.mode == "off":
            return False
        last = epochs_of(trainer) or math.inf
        return trainer.current_epoch < last - max(0, self.last_epochs_off)

    def _mix(self, images: Tensor, labels: Tensor, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        use_cutmix = self.cutmix_alpha > 0 and (self.mixup_alpha <= 0 or generator.random() < 0.5)
        alpha = self.cutmix_alpha if use_cutmix else self.mixup_alpha
        share = float(generator.beta(alpha, alpha)) if alpha > 0 else 1.0
        with torch.no_grad():
            if use_cutmix:
                center_y, center_x = generator.random(2).tolist()
                images, share = cutmix(images, share, (center_y, center_x))
            else:
                images = mixup(images, share)
            return images, mix_labels(labels, share, self.num_classes)


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
