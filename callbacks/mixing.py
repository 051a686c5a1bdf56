"""Mixup and CutMix on the device, on whole batches."""

from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from imagenet_opt.data.mix import cutmix, mix_labels, mixup
from imagenet_opt.data.randomness import key_of
from imagenet_opt.errors import ConfigError
from imagenet_opt.run.logging_step import is_logging_step

_GPU_BUSY = "gpu/utilization_percent"


class Mixing(Callback):
    """Mixes each training batch in place: images with their mirror in the batch, labels into soft targets.

    The batch is a list `[images, labels]` or an object with these attributes; the loss must take soft targets,
    as torch's cross-entropy does. What is drawn is a function of (seed, epoch, batch, rank).

    mode: "on", "off", or "auto", which turns it on for good once `gpu/utilization_percent` was above
    `busy_percent` in `busy_windows` logging steps in a row: a GPU that waits for data should first be fed. The
    decision is kept in the checkpoint.
    mixup_alpha, cutmix_alpha: of the Beta distribution; 0 leaves that one out; with both, each takes half the batches.
    last_epochs_off: so many epochs at the end of the run see plain images.

    Logs `mixing/active` (0 or 1) at every logging step when mode is "auto".
    """

    def __init__(
        self,
        *,
        mode: Literal["on", "off", "auto"] | bool,
        num_classes: int,
        seed: int = 0,
        mixup_alpha: float = 0.2,
        cutmix_alpha: float = 1.0,
        last_epochs_off: int = 0,
        busy_percent: float = 80.0,
        busy_windows: int = 5,
    ) -> None:
        if isinstance(mode, bool):  # YAML reads on and off as booleans
            mode = "on" if mode else "off"
        if mode not in ("on", "off", "auto"):
            raise ConfigError(f"callbacks.mixing.mode={mode!r} must be on, off or auto")
        if min(mixup_alpha, cutmix_alpha) < 0:
            raise ConfigError("callbacks.mixing.mixup_alpha and cutmix_alpha must be at least 0")
        self.mode, self.num_classes, self.seed = mode, num_classes, seed
        self.mixup_alpha, self.cutmix_alpha = mixup_alpha, cutmix_alpha
        self.last_epochs_off = last_epochs_off
        self.busy_percent, self.busy_windows = busy_percent, busy_windows
        self.latched = False
        self._busy_in_a_row = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._active(trainer):
            return
        place = (trainer.current_epoch, batch_idx, trainer.global_rank)
        generator = np.random.Generator(np.random.Philox(key_of(self.seed, *place)))
        images, labels = self._mix(*_read(batch), generator)
        _write(batch, images, labels)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.mode == "auto" and is_logging_step(trainer):
            self._watch(trainer)
            pl_module.log("mixing/active", float(self._active(trainer)), rank_zero_only=True)

    def state_dict(self) -> dict[str, Any]:
        return {"latched": self.latched, "busy_in_a_row": self._busy_in_a_row}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.latched, self._busy_in_a_row = state_dict["latched"], state_dict["busy_in_a_row"]

    def _active(self, trainer: Trainer) -> bool:
        if self.mode == "off" or (self.mode == "auto" and not self.latched):
            return False
        last = trainer.max_epochs is not None and trainer.max_epochs > 0 and self.last_epochs_off > 0
        return not (last and trainer.current_epoch >= trainer.max_epochs - self.last_epochs_off)  # type: ignore[operator]

    def _watch(self, trainer: Trainer) -> None:
        if self.latched:
            return
        busy = float(trainer.callback_metrics.get(_GPU_BUSY, 0.0))
        self._busy_in_a_row = self._busy_in_a_row + 1 if busy > self.busy_percent else 0
        if trainer.strategy.broadcast(self._busy_in_a_row >= self.busy_windows):  # rank 0's GPU decides for all
            self.latched = True
            rank_zero_info(f"mixing: on from step {trainer.global_step}, the GPU is above {self.busy_percent:g} % busy")

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


def _read(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, list):
        return batch[0], batch[1]
    if hasattr(batch, "images") and hasattr(batch, "labels"):
        return batch.images, batch.labels
    kind = f"a {type(batch).__name__} cannot be mixed in place; let the loader give"
    raise ConfigError(f"callbacks.mixing: {kind} a list [images, labels] or an object with these attributes")


def _write(batch: Any, images: Tensor, labels: Tensor) -> None:
    if isinstance(batch, list):
        batch[0], batch[1] = images, labels
    else:
        batch.images, batch.labels = images, labels
